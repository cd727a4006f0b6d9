"""How often findings were right, by the detector's own confidence. 5,011 findings of
`python -m benchmarks strangers --calibrate --jobs 6000 --seed 71`."""

# (own confidence, share right), ascending in both, by cause.
CALIBRATION: dict[str, tuple[tuple[float, float], ...]] = {
    "checkpoint-stall": ((0.7, 0.987), (0.85, 0.987)),
    "cpu-contention": ((0.6, 0.988), (0.75, 0.988)),
    "data-loading": ((0.951, 0.997), (0.969, 0.997)),
    "expert-imbalance": ((0.81, 0.994), (0.9, 0.994)),
    "flapping-link": ((0.929, 0.997), (0.96, 0.997)),
    "gc-pause": ((0.728, 0.997), (0.97, 0.997)),
    "job-stop": ((0.95, 0.988),),
    "sequence-imbalance": ((0.964, 0.997), (0.99, 0.997)),
    "slow-link": ((0.841, 0.999), (0.96, 0.999)),
    "slow-worker": ((0.6, 0.998), (0.99, 0.998)),
    "stage-imbalance": ((0.6, 0.997), (0.99, 0.997)),
    "uniform-slowdown": ((0.74, 0.995), (0.99, 0.995)),
}
