"""How often findings were right, by the detector's own confidence. 2,401 findings of
`python -m benchmarks strangers --calibrate --jobs 3000 --seed 4`."""

# (own confidence, share right), ascending in both, by cause.
CALIBRATION: dict[str, tuple[tuple[float, float], ...]] = {
    "data-loading": (
        (0.909, 0.989),
        (0.969, 0.989),
    ),
    "flapping-link": (
        (0.949, 0.994),
        (0.96, 0.994),
    ),
    "gc-pause": (
        (0.941, 0.989),
        (0.97, 0.989),
    ),
    "sequence-imbalance": (
        (0.973, 0.948),
        (0.99, 0.948),
    ),
    "slow-link": (
        (0.813, 0.997),
        (0.96, 0.997),
    ),
    "slow-worker": (
        (0.598, 0.981),
        (0.99, 0.981),
    ),
    "stage-imbalance": (
        (0.6, 0.987),
        (0.99, 0.987),
    ),
    "uniform-slowdown": (
        (0.653, 0.991),
        (0.99, 0.991),
    ),
}
