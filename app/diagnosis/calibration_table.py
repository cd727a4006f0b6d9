"""How often findings were right, by the detector's own confidence. 2,505 findings of
`python -m benchmarks strangers --calibrate --jobs 3000 --seed 4`."""

# (own confidence, share right), ascending in both, by cause.
CALIBRATION: dict[str, tuple[tuple[float, float], ...]] = {
    "data-loading": (
        (0.951, 0.995),
        (0.969, 0.995),
    ),
    "expert-imbalance": (
        (0.81, 0.988),
        (0.9, 0.988),
    ),
    "flapping-link": (
        (0.949, 0.995),
        (0.96, 0.995),
    ),
    "gc-pause": (
        (0.941, 0.995),
        (0.97, 0.995),
    ),
    "sequence-imbalance": (
        (0.978, 0.993),
        (0.99, 0.993),
    ),
    "slow-link": (
        (0.813, 0.997),
        (0.96, 0.997),
    ),
    "slow-worker": (
        (0.598, 0.996),
        (0.99, 0.996),
    ),
    "stage-imbalance": (
        (0.6, 0.997),
        (0.99, 0.997),
    ),
    "uniform-slowdown": (
        (0.653, 0.991),
        (0.99, 0.991),
    ),
}
