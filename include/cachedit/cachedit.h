// Everything a program that uses cachedit needs.
#pragma once

#include "cachedit/attention.h"
#include "cachedit/benchmark.h"
#include "cachedit/block_adapter.h"
#include "cachedit/enable_cache.h"
#include "cachedit/error.h"
#include "cachedit/files.h"
#include "cachedit/image.h"
#include "cachedit/inspect.h"
#include "cachedit/log.h"
#include "cachedit/pipeline.h"
#include "cachedit/plan.h"
#include "cachedit/quantize.h"
#include "cachedit/tune.h"
