"""Whether two versions of torch make the same kernels of the same operations.

Times on a simulated device depend on neither the machine nor the driver, and on torch only through
the kernels that it makes of an operation. Two versions that make the same kernels give the same
times.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from pytest_hwqueue.devices.simulated.costs import Costs
from pytest_hwqueue.devices.simulated.profile import load_profile


@cache
def torch_kernels() -> str:
    """Return a digest of the kernels that this torch makes of the suite's operations."""
    # Any profile would do: what is of interest are names, sizes and their order.
    costs = Costs(load_profile("h200"))
    digest = sha256()
    precision = torch.get_float32_matmul_precision()
    # Whatever a model of this process has set: it is no property of torch.
    torch.set_float32_matmul_precision("highest")
    with FakeTensorMode():
        for function in (_inference, _image, _training):
            with torch.inference_mode(function is not _training):
                digest.update(repr(costs.of(function, ())).encode())
    torch.set_float32_matmul_precision(precision)
    return digest.hexdigest()[:16]


def _inference() -> None:
    """Run the operations of a decoder layer, and of choosing a token."""
    for dtype in (torch.float32, torch.bfloat16):
        states = torch.empty(2, 16, 64, dtype=dtype)
        weight = torch.empty(64, 64, dtype=dtype)
        scale = torch.empty(64, dtype=dtype)
        normal = functional.layer_norm(states, (64,), scale, scale)
        normal = normal * torch.rsqrt(normal.pow(2).mean(-1, keepdim=True) + 1e-6)
        heads = functional.linear(normal, weight, scale).view(2, 16, 4, 16).transpose(1, 2)
        for causal in (True, False):
            functional.scaled_dot_product_attention(heads, heads, heads, is_causal=causal)
        mixed = torch.cat((functional.silu(normal), functional.gelu(normal)), dim=-1)
        logits = functional.softmax((mixed[..., :64] @ weight).float(), dim=-1)
        logits.argmax(-1)
        logits.topk(4)
        functional.embedding(torch.zeros(2, 4, dtype=torch.long), weight)
        states.copy_(normal).add_(normal)
        torch.bmm(states, states.transpose(1, 2))


def _image() -> None:
    """Run the operations of a convolutional network."""
    image = torch.empty(2, 3, 32, 32)
    features = functional.conv2d(image, torch.empty(8, 3, 3, 3), padding=1)
    scale = torch.empty(8)
    features = functional.batch_norm(features, scale, scale, scale, scale)
    features = functional.max_pool2d(functional.relu(features), 2)
    functional.adaptive_avg_pool2d(features, 1).flatten(1)


def _training() -> None:
    """Run a step of training, forward and backward."""
    weight = torch.empty(64, 64, requires_grad=True)
    scale = torch.empty(64, requires_grad=True)
    states = torch.empty(2, 16, 64)
    heads = functional.layer_norm(functional.linear(states, weight), (64,), scale, scale)
    heads = heads.view(2, 16, 4, 16).transpose(1, 2)
    attended = functional.scaled_dot_product_attention(heads, heads, heads)
    functional.gelu(attended).pow(2).mean().backward()
