// ATen's cuDNN attention operator, which two backends call.
#pragma once

#include "attention/backend.h"

namespace cachedit::attention {

/// Takes every mask that passed check(), and gives the log-sum-exp where asked.
Result run_cudnn(const Inputs& inputs);

/// What that operator takes, without mask and log-sum-exp.
Capabilities cudnn_capabilities();

/// cuDNN is linked and the device is one of those of cudnn_capabilities().
Availability cudnn_availability(at::Device device);

}  // namespace cachedit::attention
