"""Conversions between half and single precision, for x86 processors without instructions for them.

LLVM calls these by the names of the compiler's run-time library, which no model can rely on finding where it is loaded.
Other processors never call them.
"""

from __future__ import annotations

# Weak, so that several models may be linked together; hidden, so that none of them is seen from outside. An internal
# function would be dropped before LLVM finds out that it needs it.
HALF_CONVERSIONS = """
define weak hidden half @__truncsfhf2(float %x) nounwind {
  %bits = bitcast float %x to i32
  %high = lshr i32 %bits, 16
  %sign = and i32 %high, 32768
  %size = and i32 %bits, 2147483647
  %abs = bitcast i32 %size to float
  ; normal numbers: move the exponent, round the lowest 13 bits to even
  %moved = sub i32 %size, 939524096         ; 112 << 23
  %shifted = lshr i32 %moved, 13
  %odd = and i32 %shifted, 1
  %up = add i32 %odd, 4095
  %near = add i32 %moved, %up
  %normal = lshr i32 %near, 13
  ; below 2^-14: the last bit of 0.5 is worth 2^-24, as that of every such number
  %sum = fadd float %abs, 0.5
  %sum.bits = bitcast float %sum to i32
  %tiny = sub i32 %sum.bits, 1056964608     ; 0.5
  %small = icmp ult i32 %size, 947912704    ; 2^-14
  %finite = select i1 %small, i32 %tiny, i32 %normal
  %big = icmp uge i32 %size, 1199566848     ; 65520
  %number = select i1 %big, i32 31744, i32 %finite
  %nan = icmp ugt i32 %size, 2139095040
  %value = select i1 %nan, i32 32256, i32 %number
  %all = or i32 %value, %sign
  %narrow = trunc i32 %all to i16
  %r = bitcast i16 %narrow to half
  ret half %r
}

define weak hidden float @__extendhfsf2(half %x) nounwind {
  %narrow = bitcast half %x to i16
  %bits = zext i16 %narrow to i32
  %high = and i32 %bits, 32768
  %sign = shl i32 %high, 16
  %size = and i32 %bits, 32767
  %moved = shl i32 %size, 13
  %scaled = bitcast i32 %moved to float
  %number = fmul float %scaled, 0x46F0000000000000   ; 2^112
  %number.bits = bitcast float %number to i32
  %special = or i32 %moved, 2139095040
  %infinite = icmp uge i32 %size, 31744
  %value = select i1 %infinite, i32 %special, i32 %number.bits
  %all = or i32 %value, %sign
  %r = bitcast i32 %all to float
  ret float %r
}
"""
