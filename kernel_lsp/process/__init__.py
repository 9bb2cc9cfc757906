"""The one supervisor of every subprocess: own group, deadline, drained and bounded output, killed as a group."""
