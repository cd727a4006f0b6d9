"""How often is the diagnosis right on jobs of a generator that knows no detector?

Start with `command.py`. Simulation, noise, faults and truth are written from the published
dependency model and from measurements on published traces; nothing here reads `app.diagnosis`,
`app.engine` or `app.synth`, so that errors which those share cannot hide. `calibrate.py` writes the
table of `app.diagnosis.calibration`.
"""
