"""What do plain torch.profiler files say: one a rank, without annotations, maps or sizes?

Start at `profile.read`, which gives one rank's steps, GPU intervals and collectives;
`collective_table` brings the collectives of all ranks into `app.trace.collectives.Collectives`.
Annotated files that become operations are read by `app.trace.readers.kineto`.
"""
