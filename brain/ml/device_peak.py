"""What a device can compute at most, and the share of it that a run uses (MFU). Pure; imports no torch."""

import re

FLOPS_A_TOKEN = 6
"""Of each weight: two forward, four backward (Kaplan et al. 2020, arXiv:2001.08361); attention aside."""
PEAKS = {
    "B200": 2250e12, "H200": 989e12, "GH200": 989e12, "MI300X": 1307e12,
    "H100": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12,
    "A100": 312e12, "A10": 125e12, "L40S": 362e12, "L40": 181e12, "L4": 121e12, "V100": 125e12,
    "A6000": 155e12, "T4": 65e12, "RTX 4090": 165e12, "RTX 3090": 71e12, "RTX 5090": 210e12,
}  # fmt: skip
"""Dense bf16 or fp16 operations a second, by the makers' data sheets."""
HALF = ("bf16", "fp16")


def peak_of(device_name: str, precision: str) -> float | None:
    """Return a device's operations a second; None: unknown, or in another number format."""
    if precision not in HALF or "Laptop" in device_name:  # those are other chips
        return None
    known = [name for name in PEAKS if re.search(rf"\b{name}\b", device_name)]
    return PEAKS[max(known, key=len)] if known else None


def utilization(
    tokens: int, seconds: float, parameters: int, devices: int, peak: float | None
) -> float | None:
    """Return the share of the devices' peak that a step used; None where the peak is unknown."""
    if peak is None or seconds <= 0:
        return None
    return FLOPS_A_TOKEN * parameters * tokens / (seconds * devices * peak)
