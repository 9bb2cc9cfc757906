"""The data model: frozen types without I/O. Imports no other package of ours.

In: values that others have read or measured. Out: `Task`, `LaunchPlan`, `Candidate`, `Verdict`, `Estimate`, `Event`,
and what follows from them alone. Never: a process, or a value that changes after it was made; of files it reads
`operators.json` alone.
"""
