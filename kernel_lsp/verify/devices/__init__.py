"""The interface of devices, the one place that knows them by name, and the builds that they run.

In: a candidate's text, and cases with their files. Out: a judged outcome of each case, and times. A kernel never takes
more than its own process along, and no device sees expected values.
"""
