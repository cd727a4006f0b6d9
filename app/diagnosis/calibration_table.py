"""How often findings were right, by the detector's own confidence. 5,011 findings of
`python -m benchmarks strangers --calibrate --jobs 6000 --seed 71`."""

# (own confidence, share right), ascending in both, by cause and feed.
CALIBRATION: dict[str, dict[str, tuple[tuple[float, float], ...]]] = {
    "checkpoint-stall": {"any": ((0.7, 0.987), (0.85, 0.987))},
    "cpu-contention": {"any": ((0.6, 0.988), (0.75, 0.988))},
    "data-loading": {"any": ((0.951, 0.997), (0.969, 0.997))},
    "expert-imbalance": {"any": ((0.81, 0.994), (0.9, 0.994))},
    "flapping-link": {"any": ((0.929, 0.997), (0.96, 0.997))},
    "gc-pause": {"any": ((0.728, 0.997), (0.97, 0.997))},
    "job-stop": {"any": ((0.95, 0.988),)},
    "sequence-imbalance": {"any": ((0.964, 0.997), (0.99, 0.997))},
    "slow-link": {"any": ((0.841, 0.999), (0.96, 0.999))},
    "slow-worker": {"any": ((0.6, 0.998), (0.99, 0.998))},
    "stage-imbalance": {"any": ((0.6, 0.997), (0.99, 0.997))},
    "uniform-slowdown": {"any": ((0.74, 0.995), (0.99, 0.995))},
}
