"""Take the wrappers of nested targets away between observed calls, while a program repeats itself.

A wrapper that does nothing but count takes a network's call about 1.5 us with cold caches: 19 of them were 9 % of an
inference of 0.8 ms. Outermost calls stay wrapped; what one calls inside is counted as in its last observed call.
Runs inside the user's interpreter: Python 3.9 or newer, standard library only.
"""

from __future__ import annotations

from _kernel_lsp_calls import has_compiled

N_STEADY = 32
"""Outermost calls in a row without a new signature before the first rest."""
N_NOTED = 16
"""Last calls of these, whose nested calls are counted."""
GROWTH = 6
"""Outermost calls that the n-th rest is longer than the one before: no cycle of calls is met at one place alone."""
MAX_UNCHECKED = 30
"""Outermost calls after each signature in a rest that are compared by the first argument's shape and modes alone."""
MAX_RESTS = 400
"""Maximum rests of a process: Python 3.13 stops caching lookups of a class that changed 1000 times."""


class Rests:
    """Decide whether nested targets are wrapped now, and keep what each outermost configuration calls inside."""

    def __init__(self, targets):
        self.targets = targets
        self.is_on, self.is_flat = False, False
        self.n_new, self.n_quiet, self.n_left, self.n_rests, self.n_in_row = 0, 0, 0, 0, 0
        self.wrappers = []
        """Triples of a module class's target, and what takes its wrapper away and puts it back. A function's stays, and
        passes: an object that holds it is pickled by its name."""
        self.plans = {}
        """``(configuration, calls)`` of what one call of an outermost configuration calls inside."""
        self.n_steps = 0
        """Calls that passed and that the recorder has not counted as steps."""

    def note_new(self):
        """Note a signature that was not seen before: what was counted may no longer hold."""
        self.n_new += 1
        self.n_quiet = self.n_in_row = 0

    def begin_call(self):
        """Return what `end_call` needs, at the begin of an observed outermost call."""
        if self.n_quiet < N_NOTED:
            return self.n_new, None
        return self.n_new, [(c, c.n_calls) for target in self.targets.values() for c in target.counted()]

    def end_call(self, target, found, begun):
        """Note what an observed outermost call has called inside; begin a rest where that stays the same."""
        n_new, before = begun
        target.note(found)
        if n_new != self.n_new:
            return
        self.n_quiet += 1
        if before is None:
            return
        nested = [(c, c.n_calls - n) for c, n in before if c.n_calls > n and c is not found]
        self.plans[found] = nested
        if self.n_quiet >= N_STEADY and self.n_rests < MAX_RESTS and any(self.plans.values()):
            self._begin()

    def passes(self, target, found, run):
        """Count an outermost call that passes without its nested ones; return False for one to observe."""
        self.settle(target.run)
        if found not in self.plans:
            self.n_quiet = self.n_in_row = 0
            return False
        if self.n_left <= 0:
            return False
        n_more, run.found, run.n_left, run.n_granted = run.n_left, found, 0, 1
        self.settle(run)
        target.note(found)
        if self.is_flat and target.n_alike >= N_STEADY:
            run.n_left = run.n_granted = max(0, min(n_more, self.n_left))
            target.run = run
        return True

    def settle(self, run):
        """Count the calls of a run that passed since the last time, and what they called inside."""
        n_passed, run.n_granted = run.n_granted - run.n_left, run.n_left
        if n_passed:
            self.n_left -= n_passed
            self.n_steps += n_passed
            run.found.n_calls += n_passed
            for configuration, n_calls in self.plans[run.found]:
                configuration.n_calls += n_passed * n_calls

    def account(self):
        """Count the calls of all runs."""
        for target in self.targets.values():
            self.settle(target.run)

    def end(self):
        """Put the wrappers back."""
        if not self.is_on:
            return
        self.is_on = False
        self.account()
        for target in self.targets.values():
            target.run.n_left = target.run.n_granted = 0
            target.rests = False
        for target, _, put in self.wrappers:
            if not target.is_outermost:
                put()

    def _begin(self):
        if has_compiled():  # its guards would see the difference, and compile again
            return
        self.n_in_row += 1
        self.n_rests += 1
        self.is_on, self.n_left = True, GROWTH * self.n_in_row
        outermost = {c for target in self.targets.values() if target.is_outermost for c in target.counted()}
        self.is_flat = not any(c in outermost for nested in self.plans.values() for c, _ in nested)
        for target in self.targets.values():
            target.rests = bool(target.n_calls) and not target.is_outermost
        for target, take, _ in self.wrappers:
            if target.rests:
                take()


def of_class(kind, call):
    """Return what takes a module class's wrapped `__call__` away, and what puts it back."""

    def take():
        if kind.__dict__.get("__call__") is call:
            del kind.__call__

    def put():
        if "__call__" not in kind.__dict__:
            kind.__call__ = call

    return take, put
