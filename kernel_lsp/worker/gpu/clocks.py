"""Read a GPU's clocks from NVML through ctypes: needs no package, and changes nothing."""

from __future__ import annotations

import ctypes
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
# Values of enums in nvml.h.
CLOCK_SM, CLOCK_MEMORY = 1, 2
TEMPERATURE_GPU = 0
THROTTLE_REASONS = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""The bits for a forced slowdown. Others, e.g. idle, or clocks that an application set, are none."""


class Clocks:
    """One GPU's readings. `reason` explains why there are none; empty where there are."""

    def __init__(self, uuid: str, library: str = LIBRARY) -> None:
        self.reason = ""
        self._handle = ctypes.c_void_p()
        try:
            self._nvml = ctypes.CDLL(library)
            self._check(self._nvml.nvmlInit_v2(), "nvmlInit")
            name = (uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}").encode()
            self._check(self._nvml.nvmlDeviceGetHandleByUUID(name, ctypes.byref(self._handle)), f"no GPU {uuid}")
        except (OSError, AttributeError, NvmlRefused) as error:
            self.reason = f"NVML: {error}"

    def read(self) -> dict[str, Any]:
        """Return ``{"sm_mhz", "memory_mhz", "temperature_c", "power_w", "throttled": [reasons]}``, without values that
        this GPU does not report; ``{"reason"}`` where NVML is missing."""
        if self.reason:
            return {"reason": self.reason}
        numbers = {
            "sm_mhz": self._number("nvmlDeviceGetClockInfo", CLOCK_SM),
            "memory_mhz": self._number("nvmlDeviceGetClockInfo", CLOCK_MEMORY),
            "temperature_c": self._number("nvmlDeviceGetTemperature", TEMPERATURE_GPU),
            "power_w": self._number("nvmlDeviceGetPowerUsage", scale=1e-3),
        }
        return {"throttled": self._throttled(), **{name: value for name, value in numbers.items() if value is not None}}

    def _throttled(self) -> list[str]:
        bits = ctypes.c_ulonglong()
        function = getattr(self._nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
        if function is None or function(self._handle, ctypes.byref(bits)):
            return []
        return [reason for bit, reason in THROTTLE_REASONS.items() if bits.value & bit]

    def _number(self, function: str, *arguments: int, scale: float = 1) -> float | None:
        """Return a reading, or None for one that this GPU does not have."""
        value = ctypes.c_uint()
        call = getattr(self._nvml, function, None)
        if call is None or call(self._handle, *arguments, ctypes.byref(value)):
            return None
        return value.value * scale

    def _check(self, status: int, what: str) -> None:
        if status:
            raise NvmlRefused(f"{what} ({status})")


class NvmlRefused(Exception):
    """NVML is present and refuses."""
