"""The interface of devices, and the one place that knows them by name.

In: built kernels, and cases with their files. Out: a judged outcome of each case, and times. A kernel never takes more
than its own process along, and no device sees expected values.
"""
