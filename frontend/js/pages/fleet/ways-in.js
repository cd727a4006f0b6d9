/** The ways to send a job's timings: for each framework what to install, to set and to add. */

const INSTALL = ["Install the recorder on every worker, from a checkout of Paceline", "pip install ./client"]

const SET = (address, token) => [
  "Set in the environment of every worker",
  `export PACELINE_URL=${address}\nexport PACELINE_TOKEN=${token}\nexport PACELINE_JOB=my-first-job`,
]

const framework = (title, code, docs) => ({
  steps: (address, token) => [INSTALL, SET(address, token), [title, code]],
  last: "Start training",
  docs,
})

const END_JOB = `python -c 'import os, paceline_client
paceline_client.end_job(*(os.environ["PACELINE_" + each] for each in ("URL", "TOKEN", "JOB")))'`

/** By the name of their tab: `steps(address, token)` gives [title, code] pairs, `docs` the page with more. */
export const WAYS_IN = {
  PyTorch: framework(
    "In the training script, after the process group is initialised: DDP (pipelines and FSDP2 have one line each, too)",
    `import paceline_client
from paceline_client import topology
from paceline_client.integrations import ddp

recorder = paceline_client.start(topology=topology.from_torch())
ddp.attach(recorder, model, optimizer=optimizer)

for step, batch in enumerate(recorder.data(loader)):
    with recorder.step(step):
        train(batch)
recorder.close()`,
    "torch",
  ),
  Megatron: framework(
    "At the start of model_provider in the training script",
    `import paceline_client.integrations.megatron as paceline

paceline.install()`,
    "megatron",
  ),
  "Hugging Face": framework(
    "Where the trainer is made",
    `from paceline_client.integrations import huggingface

trainer = Trainer(model=model, args=args, train_dataset=dataset)
huggingface.attach(trainer)
trainer.train()`,
    "huggingface",
  ),
  Lightning: framework(
    "Where the trainer is made",
    `from paceline_client.integrations.lightning import PacelineCallback

trainer = Trainer(..., callbacks=[PacelineCallback()])
trainer.fit(model, loader)`,
    "lightning",
  ),
  Slurm: {
    steps: (address, token) => [
      INSTALL,
      [
        "In the batch script: srun hands the variables to every task, and the job ends when the script does",
        `#SBATCH --job-name=my-first-job
export PACELINE_URL=${address}
export PACELINE_TOKEN=${token}
export PACELINE_JOB=$SLURM_JOB_NAME

srun python train.py
${END_JOB}`,
      ],
      ["In train.py, one line of its framework", "see the tabs PyTorch, Megatron, Hugging Face and Lightning"],
    ],
    last: "Submit it with sbatch",
    docs: "README",
  },
  "Own loop": {
    steps: (address, token) => [
      INSTALL,
      SET(address, token),
      [
        "Record each step and its operations, on every rank",
        `import paceline_client
from paceline_client import topology

recorder = paceline_client.start(topology=topology.from_torch())
for step, batch in enumerate(loader):
    with recorder.step(step):
        with recorder.op("forward-compute", microbatch=0):
            loss = model(batch)
        with recorder.op("backward-compute", microbatch=0):
            loss.backward()
recorder.close()`,
      ],
    ],
    last: "Start training",
    docs: "README",
  },
  HTTP: {
    steps: (address, token) => [
      ["Register a job of one worker", registerExample(address, token)],
      ["Send its operations when it has finished a step", sendExample(address, token)],
      ["End it; else it counts as stalled five minutes later", endExample(address, token)],
    ],
    last: "Run them",
    docs: "README",
  },
  "A trace file": {
    steps: (address, token) => [
      [
        "Push a recorded trace as its workers would have",
        `export PACELINE_URL=${address}\nexport PACELINE_TOKEN=${token}\n` +
          "paceline replay TRACE.parquet --meta META.yaml",
      ],
      ["Or analyse it without a server", "paceline analyze TRACE.parquet --meta META.yaml"],
    ],
    last: "Watch it arrive",
    docs: "files",
  },
}

/** What the way's code is, to be copied whole. */
export const codeOf = (steps) => steps.map(([, code]) => code).join("\n\n")

function registerExample(address, token) {
  return `curl -X PUT ${address}/api/v1/jobs/by-hand \\
  -H "Authorization: Bearer ${token}" -H "Content-Type: application/json" \\
  -d '{"parallelism": {"dp_size": 1, "pp_size": 1}, "run_key": "run-1"}'`
}

function sendExample(address, token) {
  return `curl -X POST ${address}/api/v1/jobs/by-hand/ops \\
  -H "Authorization: Bearer ${token}" -H "Content-Type: application/json" \\
  -d '{"version": 1, "epoch": 1, "rank": 0, "dp_rank": 0, "stage": 0, "batch_seq": 0,
       "steps_done": [[0, 2]],
       "columns": {"step": [0, 0], "optype": ["forward-compute", "backward-compute"],
                   "start_ns": [0, 410000000], "duration_ns": [400000000, 800000000],
                   "mb_id": [0, 0]}}'`
}

function endExample(address, token) {
  return `curl -X POST ${address}/api/v1/jobs/by-hand/end \\
  -H "Authorization: Bearer ${token}"`
}
