"""NVRTC: finds it, compiles in a process that can be killed, reads its log, caches builds by content."""
