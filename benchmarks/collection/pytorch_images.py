"""Networks of timm: convolutional, attention-based and mixed, small variants."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.collection.entry import Entry
from benchmarks.collection.torch_vision import library

if TYPE_CHECKING:
    import torch

NAMES = [
    "botnet26t_256",
    "cait_xxs24_224",
    "coat_lite_tiny",
    "convnext_atto",
    "convnext_tiny",
    "convnextv2_atto",
    "crossvit_tiny_240",
    "cs3darknet_focus_s",
    "cspresnet50",
    "davit_tiny",
    "deit_tiny_patch16_224",
    "dla34",
    "dpn48b",
    "eca_nfnet_l0",
    "edgenext_xx_small",
    "efficientformer_l1",
    "efficientnet_b0",
    "efficientnet_lite0",
    "efficientvit_b0",
    "efficientvit_m0",
    "ese_vovnet19b_dw",
    "fastvit_t8",
    "fbnetc_100",
    "focalnet_tiny_srf",
    "gcresnext26ts",
    "ghostnet_100",
    "gmlp_ti16_224",
    "hgnetv2_b0",
    "hrnet_w18_small",
    "inception_next_tiny",
    "lambda_resnet26t",
    "lcnet_050",
    "levit_128s",
    "mixer_s32_224",
    "mixnet_s",
    "mnasnet_100",
    "mobilenetv3_large_100",
    "mobilenetv3_small_100",
    "mobilenetv4_conv_small",
    "mobileone_s0",
    "mobilevit_xxs",
    "mobilevitv2_050",
    "nest_tiny",
    "nf_regnet_b0",
    "pit_ti_224",
    "poolformer_s12",
    "pvt_v2_b0",
    "regnetx_008",
    "regnety_008",
    "repghostnet_100",
    "repvgg_a0",
    "repvit_m1",
    "res2net50_26w_4s",
    "resmlp_12_224",
    "resnest14d",
    "resnet26t",
    "resnetv2_50",
    "rexnet_100",
    "selecsls42b",
    "semnasnet_100",
    "seresnet50",
    "skresnet18",
    "starnet_s1",
    "swin_tiny_patch4_window7_224",
    "tf_efficientnetv2_b0",
    "tiny_vit_5m_224",
    "tinynet_a",
    "tnt_s_patch16_224",
    "twins_svt_small",
    "visformer_tiny",
    "vit_tiny_patch16_224",
    "xception41",
    "xcit_nano_12_p16_224",
]


def build(name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    library()
    import timm
    import torch

    timm.layers.set_fused_attn(False)
    module = timm.create_model(name, pretrained=False, exportable=True)
    size = module.default_cfg.get("test_input_size") or module.default_cfg["input_size"]
    size = module.default_cfg["input_size"] if module.default_cfg.get("fixed_input_size") else size
    return module, (torch.randn(1, *size),)


ENTRIES = [Entry(f"timm_{name}", partial(build, name)) for name in NAMES]
