"""Options of Megatron-LM and torchtitan, as the example reads them: without PyTorch."""

import pytest

from examples.torch_advised.options import Options


@pytest.mark.parametrize(
    ("pasted", "layers"),
    [
        ('--pipeline-model-parallel-layout "Et*6|t*2L"', (6, 2)),
        ('--pipeline-model-parallel-layout "E|ttt|tL"', (0, 3, 1)),
        ("--decoder-first-pipeline-num-layers 6 --decoder-last-pipeline-num-layers 2", (6, 2)),
        (
            "--parallelism.module_fqns_per_model_part "
            "tok_embeddings,layers.0 layers.1,layers.2,norm,output",
            (1, 2),
        ),
        ("", None),
    ],
)
def test_layers_of_each_stage(pasted, layers):
    assert Options.of(pasted).layers == layers


@pytest.mark.parametrize("layout", ["t*2|t*2L", "Et*2|L*2", "tE|tL", "Et*|tL", "Et|xL", ""])
def test_a_wrong_layout_is_refused(layout):
    with pytest.raises(ValueError, match="layout"):
        Options.of(f'--pipeline-model-parallel-layout "{layout}"')
