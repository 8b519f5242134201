"""The peer of `cachedit generate`: the same options and the same --json report, through diffusers."""

import argparse
import json
import resource
import time

START = time.perf_counter()


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--height", type=int)
    parser.add_argument("--width", type=int)
    parser.add_argument("--max-sequence-length", type=int)
    parser.add_argument("--save-path", required=True)
    parser.add_argument("--json", required=True)
    return parser.parse_args()


def main():
    options = parse()
    import torch
    from diffusers import FluxPipeline

    torch.set_num_threads(options.threads)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[options.dtype]
    pipe = FluxPipeline.from_pretrained(options.model_path, dtype=dtype, local_files_only=True)
    pipe.set_progress_bar_config(disable=True)
    length = options.max_sequence_length or min(512, pipe.tokenizer_2.model_max_length)
    loaded = time.perf_counter()

    ends = []

    def on_step(pipeline, step, timestep, tensors):
        ends.append(time.perf_counter())
        return tensors

    result = pipe(
        prompt=options.prompt,
        height=options.height,
        width=options.width,
        num_inference_steps=options.steps,
        max_sequence_length=length,
        generator=torch.Generator("cpu").manual_seed(options.seed),
        callback_on_step_end=on_step,
    )
    result.images[0].save(options.save_path)
    done = time.perf_counter()

    # diffusers does not say when its first step starts, so the first entry holds the text encoders too;
    # whoever reads step_seconds leaves it out.
    marks = [loaded, *ends]
    with open(options.json, "w", encoding="utf-8") as file:
        json.dump(
            {
                "seconds": {"load": loaded - START, "total": done - START},
                "step_seconds": [b - a for a, b in zip(marks, marks[1:])],
                "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            },
            file,
        )


if __name__ == "__main__":
    main()
