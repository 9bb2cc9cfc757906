"""Compute the block, the template arguments and the dynamic shared memory of each launch, in host code or in a plan."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kernel_lsp.source.host_launches import (
    HostLaunch,
    host_launches,
    number_of,
    plan_expression,
    split_top,
    without_casts,
)


class LaunchShape(NamedTuple):
    """A launch whose block is known. A template argument that is no number is None."""

    template: tuple[int | None, ...]
    block: tuple[int, int, int]
    shared: str | None
    """The bytes of dynamic shared memory, an expression of the arguments `a0`, `a1` and so on; None where unknown."""
    place: int
    """The number of launches of the kernel before this one."""
    is_one_block: bool = False
    divides_exactly: bool = False
    """True if the grid is a quotient of sizes and the host asks for the remainder of each."""


_OF_PLAN = re.compile(r"^[ \t]*//[^\n]*?:[ \t]+([\w:]+[ \t]*(?:<[^\n]*>)?<<<[^\n]*)", re.M)
"""A launch in a plan's comment."""


Returned = Mapping[str, tuple[tuple[str, ...], str]]
"""The parameters and the value of functions that are one `return`."""
_CALL = re.compile(r"(?:\b\w+(?:\.|->|::))*\b(\w+)\(([^()]*)\)")
_OPEN = re.compile(r"::|[.(]")
_QUALIFIED = re.compile(r"\b(?:(?!std\b)[A-Za-z_]\w*(?:::|\.|->))+(?=[A-Za-z_]\w*\b(?!\())")


def launch_shapes(
    text: str, constants: Mapping[str, int], returned: Returned, launched: Callable[[str, int], str]
) -> dict[str, tuple[LaunchShape, ...]]:
    """Return the template arguments and the block of each launch whose block is known, by kernel. `launched` returns
    the key of a kernel from its name and the number of arguments."""
    found: dict[str, tuple[LaunchShape, ...]] = {}
    of_file = {name: str(value) for name, value in constants.items()}
    n_before: Counter[str] = Counter()
    for launch in host_launches(_OF_PLAN.sub(lambda line: line[1].replace("//", "/"), text)):
        defined = {**of_file, **launch.defined}
        defined |= {name: _plain(value, returned) for name, value in launch.defined.items() if _OPEN.search(value)}
        threads = _plain(launch.sizes[1], returned) if len(launch.sizes) > 1 else ""
        block = _block(threads, defined) or _block(threads, {**defined, **of_file})
        kernel = launched(launch.kernel, len(launch.arguments))
        if block is not None and kernel:
            arguments = tuple(number_of(_plain(each, returned), defined) for each in launch.template)
            shared = _plain(launch.sizes[2], returned) if len(launch.sizes) > 2 else ""
            place, grid = n_before[kernel], _grid(launch)
            exact = _is_one_block(grid), _divides_exactly(grid, launch, defined)
            shape = LaunchShape(arguments, block, _shared(launch, shared, defined), place, *exact)
            found[kernel] = (*found.get(kernel, ()), shape)
        n_before[kernel] += 1
    return found


def _plain(text: str, returned: Returned) -> str:
    """Return the text with the values that functions of the file return, and without the owners of constants."""
    if "(" in text:
        text = _CALL.sub(lambda call: _result(call, returned), text)
    return _QUALIFIED.sub("", text) if "::" in text or "." in text else text


def _result(call: re.Match[str], returned: Returned) -> str:
    names, value = returned.get(call[1], ((), ""))
    given = dict(zip(names, split_top(call[2]), strict=False))
    value = re.sub(r"[A-Za-z_]\w*", lambda word: given.get(word[0], word[0]), value)
    return f"({value})" if value else call[0]


def _shared(launch: HostLaunch, shared: str, defined: Mapping[str, str]) -> str | None:
    names = {each: f"a{place}" for place, each in enumerate(launch.arguments) if each.isidentifier()}
    return plan_expression(shared, names, defined) if shared else None


def _block(size: str, defined: Mapping[str, str]) -> tuple[int, int, int] | None:
    sizes = defined.get(size, size).strip()
    sizes = sizes.removeprefix("dim3").strip(" ({})") if sizes.startswith("dim3") else sizes
    numbers = [number_of(each, defined) for each in split_top(sizes)]
    if not 1 <= len(numbers) <= 3 or any(each is None or each <= 0 for each in numbers):
        return None
    x, y, z = (*[each or 1 for each in numbers], 1, 1)[:3]
    return x, y, z


MAX_NAMES = 4
"""Maximum names and conversions that a size of a grid is followed through."""
_CONVERTED = re.compile(r"\b(?:unsigned|int|size_t|u?int(?:32|64)_t)\s*(?=\()")


def _grid(launch: HostLaunch) -> str:
    """Return the sizes of a grid without casts. A name alone is replaced by its value."""
    sizes = _followed(launch.sizes[0], launch.defined)
    sizes = sizes.removeprefix("dim3").strip(" ({})") if sizes.startswith("dim3") else sizes
    sizes = ", ".join(_followed(each, launch.defined) for each in split_top(sizes))
    return _AXIS.sub(lambda found: _axis(found, launch.defined), sizes)


_AXIS = re.compile(r"\b(\w+)\.([xyz])\b")


def _axis(found: re.Match[str], defined: Mapping[str, str]) -> str:
    """Return the size along an axis of a `dim3`, or the text itself."""
    sizes = split_top(defined.get(found[1], "").removeprefix("dim3").strip(" ({})"))
    place = "xyz".index(found[2])
    return sizes[place] if place < len(sizes) else found[0]


def _followed(size: str, defined: Mapping[str, str]) -> str:
    for _ in range(MAX_NAMES):
        size = _CONVERTED.sub("", without_casts(size))
        size = defined.get(size.strip("() "), size)
    return size


def _is_one_block(grid: str) -> bool:
    return re.fullmatch(r"[\s({]*1(?:\s*,\s*1)*[\s)}]*", grid) is not None


_QUOTIENT = re.compile(r"(\w+(?:\.\w+)*(?:\(\w*\))?)\s*(/|>>)\s*(\w+)")


_CHECK = r"(?i:assert|check|require|expect|ensure|enforce|verify)\w*\s*\([^;]*"
_REFUSAL = r"[^;{}]*(?:\{[^{}]*)?(?:\b(?:return|throw|exit|abort)\b|\Z)"
_REMAINDER = r"(?<![\w.])%s\s*(?:%%|&(?!&))"
_WAYS = rf"(?:{_CHECK}|\w\s*=(?!=)[^;]*){_REMAINDER}|{_REMAINDER}{_REFUSAL}|{_REMAINDER}[^;{{}}]*(?<![\w.])%s\s*\+="


def counts_elements(grid: str, block: str, text: str) -> bool:
    """Return whether a text multiplies a grid's name with the threads of a block, or a number: arrays have the elements
    of whole blocks."""
    threads = rf"(?:\d+|{re.escape(block)})\b"
    cast = r"(?:\([\w\s:]+\)\s*|static_cast<[^<>]*>\()?"
    return grid.isidentifier() and (
        re.search(rf"\b{grid}\s*\)?\s*\*\s*{cast}{threads}|\b{threads}\s*\*\s*{cast}{grid}\b", text) is not None
    )


def _divides_exactly(grid: str, launch: HostLaunch, defined: Mapping[str, str]) -> bool:
    """Return whether every quotient of a grid is of a size that is a multiple by its definition, or whose remainder the
    host handles: it checks it, refuses or pads other sizes, launches only the ones that divide or names the remainder.
    A warning alone is not enough: ``if (n % 16 != 0) return cudaErrorInvalidValue;``. A number of blocks that is a
    factor of another size is exact as well: that many elements are allocated."""
    if len(launch.sizes) > 1 and counts_elements(launch.sizes[0], launch.sizes[1], launch.before):
        return True
    if re.search(r"[-+]|\w\(", _QUOTIENT.sub("", grid)):
        return False
    sizes: list[tuple[str, str, str]] = _QUOTIENT.findall(grid)
    return bool(sizes) and all(_is_multiple(*each, launch, defined) for each in sizes)


def _is_multiple(size: str, operator: str, divisor: str, launch: HostLaunch, defined: Mapping[str, str]) -> bool:
    divisor = divisor if operator == "/" else f"(1 << {divisor})"
    n, step = number_of(size, defined), number_of(divisor, defined)
    if n is not None and step:
        return n % step == 0
    value = without_casts(launch.defined.get(size, ""))
    plain = re.sub(r"\([^()]*\)", "", value)
    is_product = re.search(rf"\*\s*{re.escape(divisor)}\s*\Z", value) is not None and not re.search(r"[-+%]", plain)
    names = {re.escape(each) for each in (size, value) if each}
    return is_product or any(
        re.search(_WAYS.replace("%s", name).replace("%%", "%"), launch.before) is not None for name in names
    )
