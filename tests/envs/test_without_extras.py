"""Without the extras everything else works, and what needs them names them."""

import subprocess
import sys

import pytest

import esper

MAKE = """
env = gymnasium.make("esper:Growth-v0", task="spirals", budget=2.0, options={"examples": 300})
assert env.reset(seed=0)[0].shape == (75,)
assert env.spec.id == "Growth-v0"
"""
ERROR = """
def error_of(**options):
    try:
        getattr(esper.envs, options.pop("name"))(**options)
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
"""


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"import sys\n{ERROR}{code}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_esper_needs_none_of_the_packages_and_names_those_that_its_environments_need():
    run("""
sys.modules.update(dict.fromkeys(("gymnasium", "stable_baselines3", "sb3_contrib", "torchrl", "pygame")))
import esper, esper.envs
assert esper.build_host and esper.hold_exam and "GrowthEnv" in dir(esper.envs)
says = "EsperError: {} needs the package gymnasium: pip install 'esper-nn[gym]'"
for name in ("GrowthEnv", "GrowthVectorEnv", "check_vector_env"):
    assert error_of(name=name) == says.format(name), error_of(name=name)
""")


def test_importing_esper_imports_no_gymnasium_but_what_is_imported_later_finds_the_environment():
    run(f"""
import esper, esper.envs
assert "gymnasium" not in sys.modules
import gymnasium.vector
{MAKE}
assert not [finder for finder in sys.meta_path if "esper" in type(finder).__module__]
""")


def test_gymnasium_finds_the_environment_by_itself_and_misspelt_options_and_missing_packages_are_named():
    run(f"""
import gymnasium
{MAKE}
import esper
assert error_of(name="GrowthEnv", reward="progres") == "EsperError: unknown reward 'progres': did you mean 'progress'?"
assert "unknown precision 'fp31': did you mean 'fp32'?" in error_of(name="GrowthEnv", precision="fp31")
sys.modules["stable_baselines3"] = None
says = "EsperError: SB3VecEnv needs the package stable_baselines3: pip install 'esper-nn[sb3]'"
assert error_of(name="SB3VecEnv") == says, error_of(name="SB3VecEnv")
""")


def test_other_names_and_packages_are_reported_as_usual(monkeypatch):
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = esper.envs.Nothing
    monkeypatch.setitem(esper.envs._HOME, "Lost", "lost")
    with pytest.raises(ModuleNotFoundError, match=r"esper\.envs\.lost"):
        _ = esper.envs.Lost
