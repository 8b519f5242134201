// Draws a picture from a text: text_to_image [PROMPT [FILE.png [MODEL]]]
#include <cstdio>
#include <exception>

#include "cachedit/cachedit.h"

int main(int argc, char** argv) try {
  const std::string prompt = argc > 1 ? argv[1] : "red apple";
  const std::string file = argc > 2 ? argv[2] : "picture.png";
  const std::string model = argc > 3 ? argv[3] : cachedit::default_model_path().string();

  const auto pipeline = cachedit::load_pipeline(model);

  cachedit::GenerateRequest request;
  request.prompt = {prompt};
  request.num_inference_steps = 20;
  request.seed = 1;
  request.on_step = [](const cachedit::StepProgress& progress) {
    std::fprintf(stderr, "\rstep %ld of %ld", static_cast<long>(progress.step),
                 static_cast<long>(progress.num_steps));
    return true;  // false would stop the run
  };
  const cachedit::GenerateResult result = pipeline->generate(request);

  cachedit::write_image(file, result.images.front(), {.text = {{"prompt", prompt}}});
  std::fprintf(stderr, "\n");
  std::printf("%s\n", file.c_str());
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
