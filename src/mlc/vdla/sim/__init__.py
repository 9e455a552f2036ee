"""Simulators of the accelerator: what a stream computes, and how long it takes."""

from mlc.vdla.sim.device import Device
from mlc.vdla.sim.report import Figures, Report

__all__ = ["Device", "Figures", "Report"]
