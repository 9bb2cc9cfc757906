"""Translate special registers of PTX: positions and sizes of a launch, its threads and its grid."""

from __future__ import annotations

from typing import Protocol

from kernel_lsp.ptx.run.layout import Launch, Thread
from kernel_lsp.ptx.text.syntax import UnsupportedPtxError


class FieldReader(Protocol):
    """Declare what special registers need of an emitter: IR operations, launch fields and thread fields."""

    def op(self, text: str) -> str: ...

    def launch_field(self, field_offset: int) -> str: ...

    def thread_field(self, field_offset: int) -> str: ...


def special_register(e: FieldReader, name: str) -> str:
    """Return a special register as i32, or as i64 when its name ends in 64."""
    if name in _LAUNCH_REGISTERS:
        return e.op(f"trunc i64 {e.launch_field(_LAUNCH_REGISTERS[name])} to i32")
    if name in _THREAD_REGISTERS:
        return e.op(f"trunc i64 {e.thread_field(_THREAD_REGISTERS[name])} to i32")
    if name in _WORKSPACE_HALVES:
        half = e.op(f"lshr i64 {e.launch_field(Launch.GRID_WORKSPACE)}, {_WORKSPACE_HALVES[name]}")
        return e.op(f"trunc i64 {half} to i32")
    if name in _CONSTANT_REGISTERS:
        return str(_CONSTANT_REGISTERS[name])
    index = e.op(f"trunc i64 {e.thread_field(Thread.INDEX)} to i32")
    if name == "%laneid":
        return e.op(f"and i32 {index}, 31")
    if name.startswith("%lanemask_"):
        return _lane_mask(e, name.removeprefix("%lanemask_"), e.op(f"and i32 {index}, 31"))
    if name in ("%clock", "%clock64", "%globaltimer", "%globaltimer_lo", "%clock_hi"):
        elapsed = e.op(f"sub i64 {1 << 62}, {e.op('load i64, ptr %fuel')}")
        return elapsed if name == "%clock64" else e.op(f"trunc i64 {elapsed} to i32")
    raise UnsupportedPtxError(f"the special register {name}")


_LAUNCH_REGISTERS = {
    "%ctaid.x": Launch.CTAID_X,
    "%ctaid.y": Launch.CTAID_Y,
    "%ctaid.z": Launch.CTAID_Z,
    "%nctaid.x": Launch.NCTAID_X,
    "%nctaid.y": Launch.NCTAID_Y,
    "%nctaid.z": Launch.NCTAID_Z,
    "%ntid.x": Launch.NTID_X,
    "%ntid.y": Launch.NTID_Y,
    "%ntid.z": Launch.NTID_Z,
    "%clusterid.x": Launch.CLUSTERID_X,
    "%clusterid.y": Launch.CLUSTERID_Y,
    "%clusterid.z": Launch.CLUSTERID_Z,
    "%nclusterid.x": Launch.NCLUSTERID_X,
    "%nclusterid.y": Launch.NCLUSTERID_Y,
    "%nclusterid.z": Launch.NCLUSTERID_Z,
    "%cluster_ctaid.x": Launch.CLUSTER_CTAID_X,
    "%cluster_ctaid.y": Launch.CLUSTER_CTAID_Y,
    "%cluster_ctaid.z": Launch.CLUSTER_CTAID_Z,
    "%cluster_nctaid.x": Launch.CLUSTER_NCTAID_X,
    "%cluster_nctaid.y": Launch.CLUSTER_NCTAID_Y,
    "%cluster_nctaid.z": Launch.CLUSTER_NCTAID_Z,
    "%cluster_ctarank": Launch.CLUSTER_RANK,
    "%cluster_nctarank": Launch.CLUSTER_N_BLOCKS,
    "%is_explicit_cluster": Launch.IS_EXPLICIT_CLUSTER,
    "%dynamic_smem_size": Launch.DYNAMIC_SHARED_BYTES,
}
_WORKSPACE_HALVES = {"%envreg1": 32, "%envreg2": 0}
"""Right shift in bits of the driver's address of a grid's workspace, per register
(cooperative_groups/details/driver_abi.h)."""
_THREAD_REGISTERS = {"%tid.x": Thread.TID_X, "%tid.y": Thread.TID_Y, "%tid.z": Thread.TID_Z}
_CONSTANT_REGISTERS = {"%gridid": 1}


def _lane_mask(e: FieldReader, which: str, lane: str) -> str:
    bit = e.op(f"shl i32 1, {lane}")
    below = e.op(f"sub i32 {bit}, 1")
    up_to = e.op(f"or i32 {bit}, {below}")
    masks = {"eq": bit, "lt": below, "le": up_to}
    if which in masks:
        return masks[which]
    return e.op(f"xor i32 -1, {up_to if which == 'gt' else below}")
