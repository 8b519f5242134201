"""The peer of bench/cache.py and bench/demo.py: diffusers with cache-dit, loaded once. Every line of stdin is a JSON
object {"yaml": FILE or null, "folder": FOLDER}; the answer on stdout is one line with seconds and cached steps per
prompt."""

import argparse
import json
import logging
import pathlib
import sys
import time


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--prompt-file", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    return parser.parse_args()


class Peer:
    def __init__(self, options):
        import torch
        from diffusers import FluxPipeline

        torch.set_num_threads(options.threads)
        self.options = options
        self.prompts = options.prompt_file.read_text(encoding="utf-8").splitlines()
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[options.dtype]
        self.pipe = FluxPipeline.from_pretrained(options.model_path, dtype=dtype, local_files_only=True)
        self.pipe.set_progress_bar_config(disable=True)
        # diffusers does not say when its first step starts: the transformer's first call does.
        self.calls = []
        self.pipe.transformer.register_forward_pre_hook(lambda *_: self.calls.append(time.perf_counter()))

    def draw(self, prompt, path):
        """Seconds from the first transformer call to the end of the last step, seconds from the prompt to the
        picture, and the cached steps."""
        import torch

        ends = []

        def on_step(pipeline, step, timestep, tensors):
            ends.append(time.perf_counter())
            return tensors

        self.calls.clear()
        size, length = self.options.size, min(512, self.pipe.tokenizer_2.model_max_length)
        start = time.perf_counter()
        image = self.pipe(prompt=prompt, height=size, width=size, num_inference_steps=self.options.steps,
                          max_sequence_length=length, generator=torch.Generator("cpu").manual_seed(self.options.seed),
                          callback_on_step_end=on_step).images[0]
        picture_seconds = time.perf_counter() - start
        image.save(path)
        transformer = self.pipe.transformer
        cached = getattr(transformer, "_pruned_steps", getattr(transformer, "_cached_steps", []))
        return ends[-1] - self.calls[0], picture_seconds, list(cached)

    def answer(self, request):
        import cache_dit

        if request["yaml"]:
            configs = cache_dit.load_configs(request["yaml"])
            if isinstance(configs["cache_config"], cache_dit.DBPruneConfig):
                # load_configs() leaves the file's text here, which enable_cache() then refuses.
                configs["cache_config"].cache_type = cache_dit.DBPruneConfig().cache_type
            cache_dit.enable_cache(self.pipe, **configs)
        folder = pathlib.Path(request["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        drawn = [self.draw(prompt, folder / f"{i:03}.png") for i, prompt in enumerate(self.prompts)]
        if request["yaml"]:
            cache_dit.disable_cache(self.pipe)
        denoise, pictures, cached = zip(*drawn)
        return {"denoise_seconds": denoise, "picture_seconds": pictures, "cached_steps": cached}


def main():
    # Libraries may print; only answers go to stdout.
    answers, sys.stdout = sys.stdout, sys.stderr
    logging.disable(logging.WARNING)
    peer = Peer(parse())
    for line in sys.stdin:
        print(json.dumps(peer.answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
