"""SGT in TRL: one policy trained by TRL's GRPOTrainer, its peers wherever you like.

    pip install -e ".[trl]"
    python data/examples/trl_sgt.py --model data/tiny/qwen-tiny --folder runs/folder --seed 1 &
    python data/examples/trl_sgt.py --model data/tiny/llama-tiny --folder runs/folder --seed 1

TRL trains what mini-mrl does not: models on several GPUs, with vLLM, DeepSpeed or FSDP. Two of its
methods are extended. After a round of sampling, this policy publishes its solutions in a folder
(mrl/exchange_folder.py), and where all attempts at a prompt failed, it looks up a peer's solution
there. The loss gets the imitation term of SGT:

    L = L_GRPO + lambda * mean over rescued x of NLL(y_peer | x)

A peer is another job like this one, or a run of mini-mrl with `--set exchange=runs/folder`. Both
read the problems in the order of `problems_of_step`, so peers with the same seed and the same
number of prompts per step meet at the same problems. A job waits for peers that are behind, at most
`--wait_s` seconds.

All options of TRL's GRPOConfig work too, such as `--use_vllm true` or `--bf16 true`. A job that is
started again needs a new `--name`, because it does not continue its file.
"""

import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import pad

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from mrl.alignment import ByteCodec, LossyText
from mrl.config import DATA
from mrl.exchange_folder import Folder
from mrl.records import SuccessRecord, validation_error
from mrl.reward import Verdict
from mrl.run.problems import load_problems
from mrl.samples import Group, Problem, Rollout, problems_of_step
from mrl.team import Verifier
from mrl.verifier.verifier import make_verifier


@dataclass
class Arguments:
    """The options of this script. TRL's own follow in `--help`."""

    model: str = field(metadata={"help": "directory or hub name of the model"})
    folder: str = field(metadata={"help": "folder that this policy shares with its peers"})
    name: str = field(default="", metadata={"help": "name of the policy (default: the model's)"})
    train: str = field(
        default=str(DATA / "words" / "train.jsonl"), metadata={"help": "problem file (JSONL)"}
    )
    imitation_weight: float = field(default=0.1, metadata={"help": "lambda; 0: learn alone"})
    wait_s: float = field(default=60.0, metadata={"help": "longest wait for peers, in seconds"})
    newest: int = field(default=8, metadata={"help": "records kept per problem and source"})


class SGTTrainer(GRPOTrainer):
    """GRPOTrainer with Success-Gated Transfer from the peers in a folder.

    With several processes, each has a file of its own, and a group must not be divided between
    them: per_device_train_batch_size is a multiple of num_generations.
    """

    def __init__(
        self, name: str, folder: Folder, verifier: Verifier, weight: float, **rest: Any
    ) -> None:
        self.name, self.folder, self.verifier, self.weight = name, folder, verifier, weight
        self.round = 0  # of sampling; a step of mini-mrl
        self.groups: list[Group] = []
        self.rescues = 0
        super().__init__(reward_funcs=self.judge, **rest)
        self.codec = ByteCodec(self.processing_class)

    def judge(
        self, completion_ids: list[list[int]], problem: list[dict[str, str]], **_: Any
    ) -> list[float]:
        """The reward function: verdicts of mini-mrl's verifier, 1.0 or 0.0 per completion."""
        rollouts = []
        for ids in completion_ids:
            finished = ids[-1] in self.eos_token_ids
            rollout = Rollout(ids, [], finished)
            rollout.text = self.processing_class.decode(rollout.content_ids)
            rollouts.append(rollout)

        size = self.num_generations
        self.groups = [
            Group(Problem(**problem[start]), [], rollouts[start : start + size])
            for start in range(0, len(rollouts), size)
        ]
        self.verifier.verify_groups(self.groups)
        return [rollout.reward for rollout in rollouts]

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Sample and judge (TRL), publish, and look up a solution wherever a group failed."""
        batch = super()._generate_and_score_completions(inputs)
        self.round += 1
        records = []
        for group in self.groups:
            made = SuccessRecord.of_group(group, self.name, self.state.global_step, self.codec)
            records += [record for record in made if isinstance(record, SuccessRecord)]
        self.folder.publish(self.name, records, self.round)
        self.folder.read(self.round)

        # row by row, so that TRL shuffles and cuts a rescue together with its group's first row
        rows: list[list[int]] = [[] for _ in inputs]
        for number, group in enumerate(self.groups):
            if group.outcome == "all_fail":  # the gate
                rows[number * self.num_generations] = self._solution_of_a_peer(group)
        self.rescues += sum(map(bool, rows))

        device, padding = batch["prompt_ids"].device, self.processing_class.pad_token_id
        ids = [torch.tensor(row or [padding], device=device) for row in rows]
        masks = [
            torch.full_like(row_ids, bool(row)) for row_ids, row in zip(ids, rows, strict=True)
        ]
        batch["peer_ids"] = pad(ids, padding_value=padding)
        batch["peer_mask"] = pad(masks, padding_value=0)
        return batch

    def _solution_of_a_peer(self, group: Group) -> list[int]:
        """A peer's solution in this policy's tokens, drawn uniformly; [] if there is none."""
        usable = []
        for record in self.folder.records_about([group.problem]):
            if not isinstance(record, SuccessRecord) or validation_error(record):
                continue
            verdict = self.verifier.verify(group.problem.answer, record.text, record.finished)
            if verdict is not Verdict.CORRECT:
                continue  # the peer was wrong, or it lied
            try:
                ids = self.codec.encode(record.text)
            except LossyText:
                continue
            ids += [self.processing_class.eos_token_id] * record.finished
            if len(ids) <= self.max_completion_length:
                usable.append(ids)
        rng = random.Random(f"{self.args.seed}/{self.name}/{self.round}/{group.problem.id}")
        return rng.choice(usable) if usable else []

    def _compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> Tensor:
        """TRL's loss, and lambda times the mean NLL of the peers' solutions in this minibatch."""
        loss = super()._compute_loss(model, inputs)
        rescued = inputs["peer_mask"].any(dim=1)
        rows = rescued.clone()
        rows[0] |= ~rescued.any()  # under FSDP, every process must call the model equally often
        ids, mask = inputs["peer_ids"][rows], inputs["peer_mask"][rows]
        logprobs, *_ = self._get_per_token_logps_and_entropies(
            model,
            torch.cat([inputs["prompt_ids"][rows], ids], dim=1),
            torch.cat([inputs["prompt_mask"][rows], mask], dim=1),
            ids.shape[1],
        )
        nll = -(logprobs * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        imitation = nll.sum() / rescued.sum().clamp(min=1)
        return loss + self.weight * imitation / self.current_gradient_accumulation_steps


def defaults() -> dict[str, Any]:
    """mini-mrl's recipe for the tiny pair, in the words of TRL."""
    return {
        "output_dir": "runs/trl",
        "max_steps": 960,  # optimizer steps: 240 rounds of sampling
        "per_device_train_batch_size": 32,
        "steps_per_generation": 4,  # four minibatches of 32 are 16 prompts of 8 completions
        "num_generations": 8,
        "learning_rate": 3e-5,
        "lr_scheduler_type": "constant",
        "max_completion_length": 48,
        "loss_type": "grpo",
        "beta": 0.0,
        "epsilon": 0.2,
        "weight_decay": 0.0,
        "gradient_checkpointing": False,
        "bf16": False,
        "save_strategy": "no",
        "report_to": "none",
        "logging_steps": 40,
    }


def dataset_of(train: Path, config: GRPOConfig) -> tuple[list[Problem], Dataset]:
    """The problems of a file, and TRL's rows in the order in which mini-mrl trains on them."""
    problems = load_problems(train)
    system = train.with_name("system_prompt.txt")
    messages = [{"role": "system", "content": system.read_text("utf-8").strip()}]
    messages *= system.exists()

    per_round = config.generation_batch_size // config.num_generations
    rounds = -(-config.max_steps // config.steps_per_generation)
    rows = []
    for number in range(1, rounds + 1):
        for problem in problems_of_step(problems, number, per_round, config.seed):
            prompt = [*messages, {"role": "user", "content": problem.prompt}]
            rows.append({"prompt": prompt, "problem": vars(problem)})
    return problems, Dataset.from_list(rows)


def main() -> None:
    """Train one policy, and say how often a peer helped."""
    parser = HfArgumentParser((Arguments, GRPOConfig))
    parser.set_defaults(**defaults())
    arguments, config = parser.parse_args_into_dataclasses()
    config.shuffle_dataset = False  # the rows are in their order already
    name = arguments.name or Path(arguments.model).name
    names = [
        f"{name}-{rank}" if config.world_size > 1 else name for rank in range(config.world_size)
    ]

    problems, rows = dataset_of(Path(arguments.train), config)
    folder = Folder(arguments.folder, names, problems, arguments.newest, arguments.wait_s)
    folder.open(names[config.process_index])
    with make_verifier("", 2.0, print) as verifier:
        trainer = SGTTrainer(
            names[config.process_index],
            folder,
            verifier,
            arguments.imitation_weight,
            model=AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32),
            processing_class=AutoTokenizer.from_pretrained(arguments.model),
            args=config,
            train_dataset=rows,
        )
        trainer.train()
        trainer.save_model()
    print(f"{name}: {trainer.rescues} solutions of peers were imitated.")


if __name__ == "__main__":
    main()
