"""Cutting one kernel out of the generated texts."""

from __future__ import annotations

from mlc.harness.listing import assembly, source

SOURCES = {
    "src/model.s": (
        "\t.text\na:\n\tret\n.Lfunc_end0:\n\t.size\ta, .Lfunc_end0-a\nab:\n\tnop\n\t.size\tab, 1\nlast:\n\tret\n"
    ),
    "src/model.ll": 'define void @a(ptr %x) {\n  ret void\n}\n\ndefine internal i32 @"odd"(ptr %x) {\n  ret i32 0\n}\n',
    "src/kernels.txt": "### ab\n\n# te\ny[i] = x[i]\n# unroll\ndef ab(x) -> y:\n  pass\n\n### c\n\n# te\nz[i] = 0\n",
}


def test_assembly_ends_with_the_function() -> None:
    assert assembly(SOURCES, "a") == "a:\n\tret\n.Lfunc_end0:\n"
    assert assembly(SOURCES, "ab") == "ab:\n\tnop\n"
    assert assembly(SOURCES, "last") == "last:\n\tret\n"
    assert assembly(SOURCES, "b") == ""
    regions = {"x.s": "k.r1:\n\tnop\n\t.size\tk.r1, 1\nk:\n\tret\n\t.size\tk, 1\nk.r1x:\n\tnop\n"}
    assert assembly(regions, "k") == "k.r1:\n\tnop\n\nk:\n\tret\n"


def test_the_whole_way_of_a_kernel_or_else_its_llvm() -> None:
    assert source(SOURCES, "ab") == "### ab\n\n# te\ny[i] = x[i]\n# unroll\ndef ab(x) -> y:\n  pass\n"
    assert source(SOURCES, "c") == "### c\n\n# te\nz[i] = 0\n"
    assert source(SOURCES, "a") == "define void @a(ptr %x) {\n  ret void\n}\n"
    assert source(SOURCES, "odd").startswith('define internal i32 @"odd"')
    assert source(SOURCES, "none") == ""
