"""Models of tenants: the right networks, the same bits from the same seed, and nothing else."""

from __future__ import annotations

import json
import math
import shutil
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from pytest_hwqueue.data.errors import BadInput, CheckFailed, HwqError
from pytest_hwqueue.data.records.plan import Tenant
from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.workloads.numerics import require_close
from pytest_hwqueue.parts.workloads.tenants.families import DecodeStep, TransformersFamily
from pytest_hwqueue.parts.workloads.tenants.models import (
    OpenModel,
    open_models,
    seeded_model,
)
from pytest_hwqueue.parts.workloads.tenants.shapes import (
    MODEL_SIZES,
    MODELS,
    model_family,
    model_shape,
)
from tests.conftest import slow

transformers: Any = pytest.importorskip("transformers")

NAMES = tuple(MODELS)
LARGE = ("resnet101", "resnet152", "bert-large")
# One of each family.
SOME = ("resnet18", "bert-base", "qwen3-0.6b")
FORMATS = ("fp32", "tf32", "bf16", "fp16")
# The models' own papers and repositories; torchvision counts the same for its ResNets.
WEIGHTS = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "qwen3-0.6b": 596_049_920,
}
# A network of n layers has n - 1 convolutions and a classifier; each change of width adds one.
CONVOLUTIONS = {"resnet18": 20, "resnet34": 36, "resnet50": 53, "resnet101": 104, "resnet152": 155}


class PlainStream:
    """Runs what is launched at once, in the calling thread, and counts."""

    def __init__(self) -> None:
        self.launches = 0
        self.drop = False
        self.after: Callable[[], object] = lambda: None

    def launch(
        self, function: Callable[..., object], *arguments: object, tag: str | None = None
    ) -> None:
        self.launches += 1
        if not self.drop:
            function(*arguments)
            self.after()

    def synchronize(self) -> None:
        """Nothing is outstanding."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny ResNet-18."""
    folder = tmp_path_factory.mktemp("weights") / "resnet18"
    seeded_model(model_family("resnet18"), "tiny", 11, torch.float32).save_pretrained(folder)
    return folder


def model_tenant(
    name: str, batch: int, size: str = "full", weights: str | None = None, **given: Any
) -> Tenant:
    return Tenant("one", name, batch=batch, size=size, weights=weights, parameters=given)


def tiny(name: str, seed: int = 3, **given: Any) -> OpenModel:
    stream: Any = given.pop("stream", None) or PlainStream()
    batch = given.pop("batch", 2)
    weights = given.pop("weights", None)
    tenant = model_tenant(name, batch, "tiny", weights and str(weights), **given)
    return open_models(tenant, HostDevice(), [stream], seed)[0]


def output_of(model: OpenModel) -> torch.Tensor:
    assert model.output is not None
    return model.output


def output(model: OpenModel) -> torch.Tensor:
    model.request()
    return output_of(model)


@pytest.mark.parametrize("name", NAMES)
def test_result_on_a_stream_is_that_of_a_plain_pass(name: str) -> None:
    device = HostDevice()
    with device.open_streams(2) as pool:
        model = open_models(model_tenant(name, 2, "tiny"), device, [pool.streams[1]], 3)[0]
        model.check()
        model.request()
        model.request()
        pool.synchronize()
        model.check()
    for size in MODEL_SIZES:
        assert model_shape(name, size, {}).dtype == "fp32"
    with pytest.raises(BadInput, match=f"{name} has no parameter 'lenght'; it has dtype, "):
        model_shape(name, "full", {"lenght": 3})


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", SOME)
def test_result_is_near_in_every_numeric_format(name: str, dtype: Any) -> None:
    model = tiny(name, dtype=dtype)
    model.check()
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}
    assert output(model).dtype == half.get(dtype, torch.float32)
    # TF32 is allowed only where asked for.
    assert torch.get_float32_matmul_precision() == ("high" if dtype == "tf32" else "highest")
    assert torch.backends.cudnn.allow_tf32 == (dtype == "tf32") or dtype in half


@pytest.mark.parametrize("name", ["resnet50", "bert-large"])
def test_result_is_that_of_the_library_in_float64(name: str, tmp_path: Path) -> None:
    family = model_family(name)
    assert isinstance(family, TransformersFamily)
    seeded_model(family, "tiny", 5, torch.float32).save_pretrained(tmp_path)
    automatic = getattr(transformers, family.model_class)
    exact = automatic.from_pretrained(tmp_path, dtype=torch.float64, local_files_only=True)
    exact.eval()
    generator = torch.Generator().manual_seed(3)
    with torch.inference_mode():
        if name == "resnet50":
            expected = exact(torch.randn(2, 3, 32, 32, generator=generator).double()).logits
        else:
            tokens = torch.randint(128, (2, 16), generator=generator)
            expected = exact(tokens, attention_mask=torch.ones(2, 16)).last_hidden_state
    require_close(name, output(tiny(name, 3, weights=tmp_path)), expected, 1e-5)


def test_step_behind_a_context_is_the_end_of_a_pass_over_all_of_it() -> None:
    family = model_family("qwen3-0.6b")
    model = seeded_model(family, "tiny", 5, torch.float32).eval()
    shape = model_shape("qwen3-0.6b", "tiny", {})
    step = family.forward(model, 2, shape, torch.Generator().manual_seed(3))
    assert isinstance(step, DecodeStep)
    context = torch.randint(128, (2, 16), generator=torch.Generator().manual_seed(4))
    with torch.inference_mode():
        whole = model(torch.cat((context, step.tokens), dim=1)).logits[:, -1:]
        filled = model(context, use_cache=True).past_key_values
        for index, layer in enumerate(filled.layers):
            step.cache[index, 0, :, :, :16] = layer.keys
            step.cache[index, 1, :, :, :16] = layer.values
        for _ in range(2):
            require_close("step", step(), whole, 1e-5)
    assert torch.equal(step.next_tokens, whole.argmax(dim=-1))


@pytest.mark.parametrize("name", SOME)
def test_same_seed_gives_the_same_bits_and_another_one_others(name: str) -> None:
    family = model_family(name)
    first, again, other = (
        seeded_model(family, "tiny", seed, torch.float32).state_dict() for seed in (5, 5, 6)
    )
    drawn = [key for key, value in first.items() if value.dim() > 1]
    assert drawn
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not any(torch.equal(first[key], other[key]) for key in drawn)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    stream = PlainStream()
    model = tiny(name, 5, stream=stream)
    assert stream.launches == 0
    result = output(model)
    assert stream.launches == 1, "a request is one launch"
    assert result.is_inference()
    assert torch.equal(output(model), result), "requests repeat the same work"
    assert torch.equal(output(tiny(name, 5)), result)
    assert not torch.equal(output(tiny(name, 6)), result)
    assert torch.equal(torch.get_rng_state(), state), "nobody else's numbers are drawn"


def test_threads_that_open_models_get_the_bits_of_their_seeds() -> None:
    found: dict[int, torch.Tensor] = {}

    def work(seed: int) -> None:
        found[seed] = output(tiny("resnet18", seed))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, result in found.items():
        require_close(f"seed {seed}", result, output(tiny("resnet18", seed)), 1e-5)


def test_deepest_sums_stay_within_float16() -> None:
    family = model_family("resnet152")
    model = seeded_model(family, "tiny", 0, torch.float32).eval()
    largest = 0.0

    def look(_module: object, _inputs: object, out: object) -> None:
        nonlocal largest
        if isinstance(out, torch.Tensor):
            largest = max(largest, float(out.abs().max()))

    for module in model.modules():
        module.register_forward_hook(look)
    with torch.inference_mode():
        model(pixel_values=torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    assert 0 < largest < torch.finfo(torch.float16).max / 100


# Of each family the smaller ones; the others differ in their number of layers.
@pytest.mark.parametrize("name", [slow(each) if each in LARGE else each for each in NAMES])
def test_networks_are_those_of_the_papers(name: str) -> None:
    device = SimulatedDevice("h200")
    with device.open_streams(1) as pool:
        model = open_models(model_tenant(name, 1), device, [pool.streams[0]], 3)[0]
        works = device.costs.of(model.forward, ())
    assert model.parameters == WEIGHTS[name]
    count = Counter(getattr(work, "name", "") for work in works)
    assert count["aten.convolution"] == CONVOLUTIONS.get(name, 0)
    if name in CONVOLUTIONS:
        assert count["aten.addmm"] == 1


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("resnet18", "fp32"), ("resnet18", "bf16"), ("bert-base", "bf16"), ("qwen3-0.6b", "fp32")],
)
def test_models_run_on_the_simulated_device(name: str, dtype: Any, saved: Path) -> None:
    # Weights of a folder give it their shapes.
    weights = str(saved) if (name, dtype) == ("resnet18", "fp32") else None
    device = SimulatedDevice("h200")
    with device.open_streams(1) as pool:
        tenant = model_tenant(name, 8, "tiny", weights, dtype=dtype)
        (model,) = open_models(tenant, device, pool.streams, 3)
        model.request()
        enqueued_ns = device.clock_ns()
        pool.synchronize()
        first_ns = device.clock_ns()
        assert first_ns > enqueued_ns, "a request does not wait"
        assert isinstance(model.output, FakeTensor)
        model.request()
        pool.synchronize()
        assert device.clock_ns() > first_ns


def test_simulated_batch_costs_what_its_arithmetic_does() -> None:
    # He et al. count 3.8e9 multiply-adds for ResNet-50; the stride in the 3×3 convolutions, as
    # everybody has it now, makes them 4.1e9.
    device = SimulatedDevice("h200")
    with device.open_streams(1) as pool:
        model = open_models(model_tenant("resnet50", 1024), device, [pool.streams[0]], 3)[0]
        works = device.costs.of(model.forward, ())
    products = [work for work in works if getattr(work, "name", "") == "aten.convolution"]
    ns = sum(getattr(work, "duration_ns", 0) for work in products)
    arithmetic = device.profile.arithmetic
    rate = arithmetic.fp32_flop_per_s.value * arithmetic.matrix_efficiency.value
    assert ns / 1e9 * rate / 2 / 1024 == pytest.approx(4.1e9, rel=0.02)


def test_models_that_disagree_on_tf32_are_refused_in_one_process() -> None:
    first = tiny("resnet18", dtype="tf32")
    # Half precision leaves the setting of others alone.
    tiny("resnet18", dtype="bf16").request()
    first.request()
    tiny("bert-base", dtype="fp32").request()
    with pytest.raises(RuntimeError, match=r"resnet18.*dtype tf32.*set fp32.*separate process"):
        first.request()


@pytest.mark.parametrize("name", SOME)
def test_one_wrong_value_or_none_at_all_is_noticed(name: str) -> None:
    stream = PlainStream()
    model = tiny(name, stream=stream)
    for value in (1e3, math.nan, math.inf):

        def spoil(value: float = value) -> None:
            with torch.inference_mode():
                output_of(model).view(-1)[5] = value

        stream.after = spoil
        with pytest.raises(CheckFailed, match=f"{name}.*relative error"):
            model.check()
    stream.drop = True
    with pytest.raises(CheckFailed, match="computed nothing"):
        model.check()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"batch": 0}, "tenant one: batch is 0; give at least 1"),
        ({"dtype": "fp64"}, "resnet18.dtype='fp64': Input should be 'fp32', 'tf32', 'bf16' or"),
        ({"image_size": 31}, "resnet18.image_size=31: Input should be greater than or equal"),
        (
            {"sequence_length": 9},
            r"resnet18 has no parameter 'sequence_length'; it has dtype, image_size",
        ),
        ({"name": "resnet20"}, r"no model 'resnet20'; there are resnet18, resnet34"),
    ],
)
def test_bad_arguments_are_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        tiny(**{"name": "resnet18", **given})


@pytest.mark.parametrize(
    ("name", "given", "items"),
    [
        ("resnet18", {}, "images of 3×32×32, fp32 without TF32, 0.2 million weights from a s"),
        ("resnet18", {"image_size": 48, "dtype": "bf16"}, "images of 3×48×48, bf16"),
        ("bert-base", {"sequence_length": 512, "dtype": "bf16"}, "sequences of 512 tokens, bf16"),
        ("qwen3-0.6b", {"sequence_length": 3}, "tokens behind a context of 3, fp32"),
    ],
)
def test_a_model_has_the_shape_it_is_given_and_says_so(
    name: str, given: dict[str, Any], items: str
) -> None:
    model = tiny(name, **given)
    assert model.description.startswith(f"{name} (tiny), batch 2, {items}")
    assert model.items_per_request == 2
    model.check()


def test_requests_at_once_share_weights_and_nothing_else() -> None:
    streams: Any = [PlainStream(), PlainStream()]
    for name in SOME:
        first, second = open_models(model_tenant(name, 2, "tiny"), HostDevice(), streams, 3)
        assert first.parameters == second.parameters
        one, other = output(first).clone(), output(second)
        assert not torch.equal(one, other)
        assert torch.equal(output(first), one)
        first.check()
        second.check()


def test_weights_of_a_folder_are_used_and_the_seed_makes_only_inputs(saved: Path) -> None:
    loaded, other = (tiny("resnet18", seed, weights=saved) for seed in (11, 12))
    own = output(tiny("resnet18", 11))
    assert torch.equal(output(loaded), own)
    assert str(saved) in loaded.description
    assert not torch.equal(output(other), own)
    assert not torch.equal(output(other), output(tiny("resnet18", 12)))


def change(folder: Path, **changed: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))


def drop_a_weight(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["classifier.1.bias"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def pickle_only(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (shutil.rmtree, "no such folder"),
        (
            lambda folder: (folder / "config.json").unlink(),
            "read: .*No such file",
        ),
        (
            lambda folder: (folder / "config.json").write_text("{"),
            "read: Expecting",
        ),
        (lambda folder: (folder / "config.json").write_text("[]"), "model_type is None"),
        (lambda folder: change(folder, model_type="bert"), "'bert', must be 'resnet'"),
        (lambda folder: change(folder, depths=[3, 4, 6, 3]), r"depths is \[3, 4, 6, 3\], must be"),
        (pickle_only, r"no model.safetensors or .*pickled ones are not read"),
        (drop_a_weight, r"1 weights of ResNetForImageClassification are missing: classifier.1"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\0" * 40), "be loaded"),
        (lambda folder: change(folder, id2label={"0": "a"}), "cannot be loaded"),
    ],
)
def test_broken_folder_is_named_with_what_is_missing(
    saved: Path, tmp_path: Path, harm: Callable[[Path], object], said: str
) -> None:
    copied = shutil.copytree(saved, tmp_path / "copied")
    harm(copied)
    with pytest.raises(BadInput, match=said) as raised:
        tiny("resnet18", weights=copied)
    assert str(copied) in str(raised.value)


def test_nothing_is_asked_of_the_network(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a model asked for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for name in SOME:
        output(tiny(name))
    output(tiny("resnet18", weights=saved))


def test_error_without_transformers_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(HwqError, match=r"pip install 'pytest-hwqueue\[models\]'"):
        tiny("resnet18")


def test_importing_brings_in_nothing_heavy() -> None:
    code = (
        "import sys, pytest_hwqueue.parts.workloads.tenants.shapes; print('torch' in sys.modules); "
        "import pytest_hwqueue.parts.workloads.tenants.models; print('transformers' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False"]
