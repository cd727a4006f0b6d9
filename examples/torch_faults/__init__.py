"""Small trainings with DDP, FSDP2, a pipeline and transformers' Trainer, each with a fault."""
