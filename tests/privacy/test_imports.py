import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["filter", "ledger", "plan", "records", "mlp"])
def test_light_modules_load_neither_torch_nor_the_accountant(module: str) -> None:
    heavy = ("torch", "dp_accounting", "scipy", "opacus")
    code = f"import sys, privacy.{module}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_charging_at_an_integer_order_needs_no_accountant() -> None:
    code = (
        "import sys; from privacy.plan import MechanismPlan as P; P(.1, 1., 4., 5, 10).rdp(17.0);"
        "print([m for m in ('torch', 'dp_accounting', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
