"""Networks of torchvision: classification, segmentation, video."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

from benchmarks.collection.entry import Entry, answering

if TYPE_CHECKING:
    import torch

IMAGE = (1, 3, 224, 224)

NAMES: dict[str, tuple[int, ...]] = {
    "alexnet": IMAGE,
    "googlenet": IMAGE,
    "vgg11_bn": IMAGE,
    "squeezenet1_1": IMAGE,
    "shufflenet_v2_x1_0": IMAGE,
    "mnasnet0_5": IMAGE,
    "densenet121": IMAGE,
    "inception_v3": (1, 3, 299, 299),
    "regnet_x_400mf": IMAGE,
    "regnet_y_400mf": IMAGE,
    "resnext50_32x4d": IMAGE,
    "wide_resnet50_2": IMAGE,
    "swin_t": IMAGE,
    "vit_b_32": IMAGE,
    "maxvit_t": IMAGE,
    "deeplabv3_mobilenet_v3_large": IMAGE,
    "lraspp_mobilenet_v3_large": IMAGE,
    "fcn_resnet50": IMAGE,
    "deeplabv3_resnet50": IMAGE,
    "mc3_18": (1, 3, 8, 112, 112),
    "r2plus1d_18": (1, 3, 8, 112, 112),
    "s3d": (1, 3, 16, 224, 224),
}

# These build auxiliary heads, for training only, unless told otherwise.
AUXILIARY = {"googlenet", "inception_v3"}


@cache
def library() -> Any:
    """torchvision, beside a torch whose compiled part it was not built for.

    Its compiled part holds operators of detection, which none of these networks has; where it does not load, the
    package fails at import as it looks for two of them, unless they are declared.
    """
    import torch

    try:
        import torchvision
    except RuntimeError:
        declared = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
    return torchvision


def build(name: str, shape: tuple[int, ...]) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    import torch

    models = library().models
    options: dict[str, Any] = {"weights": None}
    if name in AUXILIARY:
        options |= {"aux_logits": False, "init_weights": False}
    # Segmentation networks answer with a dictionary.
    if "deeplab" in name or name.startswith(("fcn", "lraspp")):
        options |= {"weights_backbone": None}
        module = answering(models.get_model(name, **options), lambda network, image: network(image)["out"])
    else:
        module = models.get_model(name, **options)
    return module, (torch.randn(shape),)


ENTRIES = [Entry(f"tv_{name}", partial(build, name, shape)) for name, shape in NAMES.items()]
