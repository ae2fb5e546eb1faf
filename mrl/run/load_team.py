"""Makes a team from settings: for a run, and for a Python program (`load_team`).

What loads models is imported only when a team is made, so that `import mini_mrl` is quick.
"""

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mrl.config import RunConfig
from mrl.errors import MrlError
from mrl.exchange_folder import KINDS, Folder
from mrl.modes import Mode
from mrl.placement import Allocation, torch_settings
from mrl.run.liars import lying_records
from mrl.run.problems import check_prompts, load_problems
from mrl.samples import Problem
from mrl.settings.read import make_mode, run_config
from mrl.team import Team, publish_records
from mrl.verifier.verifier import BoxVerifier, make_verifier


@dataclass(kw_only=True)
class LoadedTeam(Team):
    """A team whose settings, models and problems have been checked, with held-out problems."""

    device: str
    why_placed: str  # a sentence that says where the policies are kept, and why
    heldout: dict[str, list[Problem]] = field(default_factory=dict)  # by the stem of the file

    def evaluate(self, problems: str | Path, samples: int = 4) -> dict[str, dict[str, float]]:
        """pass@1 on a file of problems, by policy and skill; "all" is the mean over skills.

        samples: completions per problem, sampled at the policy's own temperature.
        """
        from mrl.run.evaluation import load_heldout, score_entries, solve_heldout

        splits = load_heldout([str(problems)], self.verifier)
        about = self.policies, splits, self.verifier, samples, self.seed, self.turn
        scores = {}
        for entry in score_entries(solve_heldout(*about), splits, samples):
            of_skills = {skill: values["pass@1"] for skill, values in entry["skills"].items()}
            mean = {"all": entry["pass@1"]}  # first, and it counts if a skill has the same name
            scores[entry["policy"]] = mean | of_skills | mean
        return scores


def load_team(
    models: str | Sequence[str | Path | tuple] = "tiny",
    mode: str | type[Mode] | Mode = "sgt",
    seed: int = 0,
    judge: Callable[[str, str], bool] | None = None,
    **settings: Any,
) -> LoadedTeam:
    """Load a team to train from Python: `train_step(team, step)`. It leaves no files behind.

    models: "tiny", "qwen-smol", or a list of directories, hub names and pairs (model, tokenizer).
    A model in a pair stays as it is, because a copy is trained. The policy's name is the last part
    of the path that the model was loaded from. Without such a path, it is "model-0" and so on.
    mode: a name, `file.py:Class`, a subclass of Mode, or an object of such a class. An object is
    copied.
    judge: your own judge(answer, text) -> bool. It runs in this process, without the limits of time
    and memory that the program's own verifier has.
    settings: settings of the run or of all policies, by name, such as prompts_per_step=8. Settings
    of a mode are written settings={"sgt": {"imitation_weight": 0.5}}. `python mini_mrl.py settings`
    lists all settings.

    All policies stay in this process. A step changes torch's number of threads and its use of
    cuDNN, and restores both at its end.
    Raises MrlError, with what to do, for any mistake that would keep a run from starting.
    """
    with tempfile.TemporaryDirectory() as folder:
        pair = models if isinstance(models, str) else ",".join(_places(models, folder))
        config = run_config(pair, None, {"mode": mode}, {"seed": seed, **settings})
        verifier = make_verifier(judge or config.judge, config.verify_timeout_s, print)
        names = [policy.name for policy in config.policies]
        with torch_settings(config.threads):
            team = assemble(config, config, names, verifier)
        if team.folder:
            for name in names:
                team.folder.open(name)
        return team


def _places(models: Sequence[str | Path | tuple], folder: str) -> list[str]:
    """The path or hub name of each model. Models in memory are saved in the folder first."""
    from transformers import PreTrainedModel

    from mrl.models.loading import quiet_transformers

    places: list[str] = []
    in_memory: list[object] = []
    for number, entry in enumerate(models):
        if isinstance(entry, str | Path):
            places.append(str(entry))
            continue

        model = entry[0] if isinstance(entry, tuple) else None
        if not isinstance(model, PreTrainedModel) or type(model) is not _causal_class(model):
            raise MrlError(
                f"models[{number}] must be a directory, a hub name, or a pair (model, tokenizer) "
                "whose model is a transformers causal language model; other model classes cannot "
                "be reloaded faithfully."
            )

        if any(model is other for other in in_memory):
            raise MrlError(
                f"models[{number}] is the same object as an earlier model. Each policy trains its "
                "own weights: load a second copy, or pass the directory twice."
            )
        in_memory.append(model)

        path = Path(folder, str(number), Path(model.name_or_path or "").name or f"model-{number}")
        with quiet_transformers():
            for part in entry:
                part.save_pretrained(path)
        places.append(str(path))
    return places


def _causal_class(model: Any) -> object:
    """The class with which transformers would load this model to write text."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    return MODEL_FOR_CAUSAL_LM_MAPPING.get(type(model.config), None)


def assemble(
    config: RunConfig, start: RunConfig, names: Iterable[str], verifier: BoxVerifier
) -> LoadedTeam:
    """Load and check everything that a team needs. Raises MrlError for any mistake.

    start: the same settings, with the paths of the initial weights (perhaps those of a checkpoint).
    names: the policies of this process.
    """
    from mrl.models import loading
    from mrl.models.memory_estimate import choose_placement
    from mrl.run.evaluation import load_heldout

    modes = {name: make_mode(config.mode, config.settings) for name in names}
    mode = next(iter(modes.values()))

    problems = load_problems(Path(config.train), verifier.check_answer)
    heldout = load_heldout(config.heldout, verifier)
    if config.prompts_per_step > len(problems):
        raise MrlError(
            f"prompts_per_step is {config.prompts_per_step}, but {config.train} holds only "
            f"{len(problems)} problems. Lower prompts_per_step, or add problems."
        )

    all_names = [policy.name for policy in config.policies]
    folder = None
    if config.exchange:
        if mode.consumes not in KINDS.values():
            raise MrlError(
                f"Mode {mode.name} consumes no completions of peers, so it cannot use the folder "
                f"{config.exchange}. Leave `exchange` out, or choose another mode, such as sgt."
            )
        waits = config.exchange_newest, config.exchange_wait_s
        folder = Folder(config.exchange, all_names, problems, *waits)

    device = loading.pick_device(config.device)
    every_problem = list(problems)
    for split in heldout.values():
        every_problem += split
    # first, because loading the weights may take minutes
    placement, why_placed = choose_placement(start, list(modes), device)
    policies = loading.load_policies(start, device, modes)
    for policy in policies:
        check_prompts(policy, every_problem)  # raises MrlError if a prompt is too long

    records_of = lying_records(config.liar, config.seed) if config.liar else publish_records
    return LoadedTeam(
        policies=policies,
        modes=modes,
        problems=problems,
        verifier=verifier,
        allocation=Allocation(policies, all_names, placement, device, config.threads),
        seed=config.seed,
        prompts_per_step=config.prompts_per_step,
        trust=config.trust,
        records_of=records_of,
        folder=folder,
        device=device,
        why_placed=why_placed,
        heldout=heldout,
    )
