"""What `test` tries at each effort: nothing that a template names is left out, and no build for every layer where a few do."""

from __future__ import annotations

from collections import Counter

from workbench.core.layer import DTYPES
from workbench.core.variants import discover
from workbench.drive.checking.variant_tests import planned


def test_full_tries_every_precision_dtype_and_form_of_every_variant() -> None:
    there = planned(discover(), "full", sm=90)
    assert ({(c.variant.key, c.precision, c.form) for c, _ in there}
            == {(v.key, p, form) for v in discover() for p in v.precision for form in v.forms})
    assert {w.dtype for c, w in there if "runtime" in c.variant.forms} == set(DTYPES)


def test_quick_and_normal_build_a_variant_without_a_run_time_form_for_few_layers() -> None:
    for effort, most in (("quick", 1), ("normal", 8)):
        tried = Counter((c.variant.key, c.precision) for c, _ in planned(discover(), effort, sm=90)
                        if "runtime" not in c.variant.forms)
        assert max(tried.values()) <= most and {key for key, _ in tried} == {
            v.key for v in discover() if "runtime" not in v.forms}
