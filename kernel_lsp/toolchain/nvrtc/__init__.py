"""NVRTC: find it, compile in a process that can be killed, parse its log, cache builds by content."""
