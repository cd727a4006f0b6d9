"""Fake of the parts of megatron-core 0.16.1 that the hook patches: names, arguments, call order.

One module stands for several of Megatron's. A test compares the signatures with the real ones
where megatron-core is installed.
"""

import contextlib
import inspect
import types

# Parameters of each wrapped function in megatron-core 0.16.1.
SIGNATURES = {
    name: text.split()
    for name, text in {
        "forward_step": "forward_step_func data_iterator model num_microbatches input_tensor "
        "forward_data_store config cp_group_size collect_non_loss_data "
        "checkpoint_activations_microbatch is_first_microbatch current_microbatch vp_stage "
        "is_last_stage",
        "backward_step": "input_tensor output_tensor output_tensor_grad model_type config",
        "get_schedule_table": "num_microbatches num_model_chunks "
        "microbatch_group_size_per_vp_stage",
        "P2PCommunicator._communicate": "self tensor_send_next tensor_send_prev recv_prev "
        "recv_next tensor_shape wait_on_reqs",
        "Timers.__call__": "self name log_level",
    }.items()
}


def parameters(module, name):
    """Parameter names of a module's function."""
    found = module
    for part in name.split("."):
        found = getattr(found, part)
    return list(inspect.signature(found).parameters)


class Tensor:
    """A tensor of a transfer."""

    nbytes = 8192


class Work:
    def __init__(self):
        self.waited = 0

    def wait(self):
        self.waited += 1
        return True


class Timer:
    def __init__(self, name, calls):
        self.name, self.calls = name, calls

    def start(self, barrier=False):
        self.calls.append((self.name, "start", barrier))

    def stop(self, barrier=False):
        self.calls.append((self.name, "stop", barrier))

    def elapsed(self):
        return 7.0


class Timers:
    def __init__(self, log_level, log_option):
        self.calls = []

    def __call__(self, name, log_level=None):
        return Timer(name, self.calls)


class P2PCommunicator:
    def __init__(self, pp_group, config):
        self.pp_group, self.config = pp_group, config
        self.works = []

    def _communicate(
        self,
        *,
        tensor_send_next,
        tensor_send_prev,
        recv_prev,
        recv_next,
        tensor_shape,
        wait_on_reqs=True,
    ):
        works = {
            name: Work()
            for name, asked in (
                ("send_next", tensor_send_next),
                ("recv_prev", recv_prev),
                ("send_prev", tensor_send_prev),
                ("recv_next", recv_next),
            )
            if asked
        }
        self.works += works.values()
        received = [Tensor() if asked else None for asked in (recv_prev, recv_next)]
        return (*received, None if wait_on_reqs else works)

    def transfer(self, send_next=None, send_prev=None, recv_prev=False, recv_next=False, wait=True):
        return self._communicate(
            tensor_send_next=send_next,
            tensor_send_prev=send_prev,
            recv_prev=recv_prev,
            recv_next=recv_next,
            tensor_shape=(),
            wait_on_reqs=wait,
        )


def get_schedule_table(num_microbatches, num_model_chunks, microbatch_group_size_per_vp_stage):
    """Groups of micro-batches; each group passes through the chunks in order."""
    size = microbatch_group_size_per_vp_stage
    return [
        (microbatch, chunk)
        for first in range(0, num_microbatches, size)
        for chunk in range(num_model_chunks)
        for microbatch in range(first, min(first + size, num_microbatches))
    ]


def forward_step(
    forward_step_func,
    data_iterator,
    model,
    num_microbatches,
    input_tensor,
    forward_data_store,
    config,
    cp_group_size,
    collect_non_loss_data=False,
    checkpoint_activations_microbatch=None,
    is_first_microbatch=False,
    current_microbatch=None,
    vp_stage=None,
    is_last_stage=True,
):
    forward_step_func(data_iterator, model)
    return [Tensor()], 0


def backward_step(input_tensor, output_tensor, output_tensor_grad, model_type, config):
    return [Tensor()]


def forward_backward_no_pipelining(
    *, forward_step_func, data_iterator, model, num_microbatches, forward_only=False
):
    config = model.config
    for microbatch in range(num_microbatches):
        given = (forward_step_func, data_iterator, model, num_microbatches, None)
        output, _ = forward_step(*given, [], config, 1, current_microbatch=microbatch)
        if not forward_only:
            backward_step(None, output, None, None, config)
    if not forward_only:
        finalize_model_grads(config)
    return []


def forward_backward_pipelining_without_interleaving(
    *,
    forward_step_func,
    data_iterator,
    model,
    num_microbatches,
    p2p_communicator,
    forward_only=False,
):
    """The calls of 1F1B on one stage."""
    group, config, p2p = p2p_communicator.pp_group, model.config, p2p_communicator
    first, last = group.rank == 0, group.rank == group.size - 1
    warm_up = min(group.size - group.rank - 1, num_microbatches)
    outputs = []

    def forward(microbatch):
        given = (forward_step_func, data_iterator, model, num_microbatches)
        output, _ = forward_step(
            *given, [None], [], config, 1, current_microbatch=microbatch, is_last_stage=last
        )
        outputs.append(output)
        return output[0]

    for microbatch in range(warm_up):
        if not first:
            p2p.transfer(recv_prev=True)
        p2p.transfer(send_next=forward(microbatch))
    if warm_up < num_microbatches and not first:
        p2p.transfer(recv_prev=True)
    for microbatch in range(warm_up, num_microbatches):
        output = forward(microbatch)
        if not last:
            p2p.transfer(send_next=output, recv_next=True)
        gradient = backward_step([None], outputs.pop(0), [None], None, config)
        if not first:
            p2p.transfer(send_prev=gradient[0], recv_prev=microbatch < num_microbatches - 1)
    for _ in range(warm_up):
        p2p.transfer(recv_next=True)
        gradient = backward_step([None], outputs.pop(0), [None], None, config)
        if not first:
            p2p.transfer(send_prev=gradient[0])
    finalize_model_grads(config)


def forward_backward_pipelining_with_interleaving(
    *,
    forward_step_func,
    data_iterator,
    model,
    num_microbatches,
    p2p_communicator,
    forward_only=False,
):
    """All forwards, then all backwards, as on the first of two stages; receives overlap."""
    p2p, config = p2p_communicator, model[0].config
    table = get_schedule_table(
        num_microbatches, len(model), config.microbatch_group_size_per_vp_stage
    )
    waiting, outputs = None, {}
    for position, (microbatch, chunk) in enumerate(table):
        if chunk > 0 and waiting is not None:
            waiting["recv_prev"].wait()
        given = (forward_step_func, data_iterator[chunk], model[chunk], num_microbatches, [None])
        outputs[microbatch, chunk], _ = forward_step(
            *given, [], config, 1, current_microbatch=microbatch, vp_stage=chunk
        )
        receives = [chunk for _, chunk in table[position + 1 : position + 2] if chunk > 0]
        *_, waiting = p2p.transfer(
            send_next=outputs[microbatch, chunk][0], recv_prev=bool(receives), wait=False
        )
    for microbatch, chunk in table:
        chunk = len(model) - 1 - chunk
        p2p.transfer(recv_next=True)
        gradient = backward_step([None], outputs[microbatch, chunk], [None], None, config)
        if chunk > 0:
            p2p.transfer(send_prev=gradient[0])
    finalize_model_grads(config)


def finalize_model_grads(config):
    for name in (
        "all-grads-sync",
        "conditional-embedder-grads-all-reduce",
        "non-tensor-parallel-grads-all-reduce",
        "embedding-grads-all-reduce",
    ):
        if config.timers is not None:
            config.timers(name, log_level=1).start(barrier=False)
            config.timers(name).stop()


class MegatronOptimizer:
    """Base class; its methods are abstract in Megatron."""

    chained_optimizers: tuple = ()
    grad_scaler = None

    def __init__(self, config):
        self.config = config

    def step(self):
        raise NotImplementedError

    def step_with_ready_grads(self):
        raise NotImplementedError


class MixedPrecisionOptimizer(MegatronOptimizer):
    finite = True

    def step(self):
        if not self.finite:
            return False, None, None
        return self.step_with_ready_grads(), 1.0, None

    def step_with_ready_grads(self):
        return True


class DistributedOptimizer(MixedPrecisionOptimizer):
    def step_with_ready_grads(self):
        done = super().step_with_ready_grads()
        if self.config.timers is not None:
            self.config.timers("params-all-gather", log_level=1).start(barrier=False)
            self.config.timers("params-all-gather").stop()
        return done


class ChainedOptimizer(MegatronOptimizer):
    def step(self):
        return self.step_with_ready_grads(), 1.0, None

    def step_with_ready_grads(self):
        done = [each.step_with_ready_grads() for each in self.chained_optimizers]
        return all(done)


@contextlib.contextmanager
def failing(optimizer):
    def fail():
        raise ArithmeticError("no such gradients")

    optimizer.step_with_ready_grads = fail
    yield


def config(**changes):
    fields = {"timers": None, "clip_grad": 1.0, "microbatch_group_size_per_vp_stage": 2}
    return types.SimpleNamespace(**{**fields, **changes})


def model(**changes):
    return types.SimpleNamespace(config=config(**changes), share_embeddings_and_output_weights=True)


def stage(rank, size=2):
    return P2PCommunicator(types.SimpleNamespace(rank=rank, size=size), config())
