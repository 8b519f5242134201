#include "io/safetensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cachedit/error.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"
#include "support/weight_files.h"

namespace cachedit::io {
namespace {

using test::expect_error;
using test::TempDir;
using test::weight_file;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// Opens a file with these bytes and expects a refusal that names the file and fits `text`.
template <class ErrorType = WeightError>
void expect_refusal(const std::string& bytes, const ::testing::Matcher<std::string>& text) {
  const TempDir folder;
  const auto path = folder.write("bad.safetensors", bytes);
  expect_error<ErrorType>([&path] { SafetensorsFile file(path); },
                          AllOf(HasSubstr("bad.safetensors"), text));
}

std::map<std::string, at::Tensor> sample_tensors() {
  std::map<std::string, at::Tensor> tensors;
  const at::Tensor numbers = at::arange(6, at::kFloat).view({2, 3});
  for (const auto dtype : {at::kByte, at::kChar, at::kUInt16, at::kShort, at::kUInt32, at::kInt,
                           at::kUInt64, at::kLong, at::kHalf, at::kBFloat16, at::kFloat,
                           at::kDouble, at::kBool, at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    tensors[c10::toString(dtype)] = numbers.to(dtype);
  }
  tensors["scalar"] = at::arange(1, at::kFloat).squeeze();
  tensors["empty"] = at::empty({0, 5}, at::kFloat);
  tensors["transposed"] = numbers.t();
  return tensors;
}

TEST(Safetensors, WhatIsWrittenReadsBackWithEveryDtype) {
  const TempDir folder;
  const auto tensors = sample_tensors();
  write_safetensors(folder / "a.safetensors", tensors, {{"format", "pt"}, {"title", "r\u00e9d"}});
  const SafetensorsFile file(folder / "a.safetensors");
  EXPECT_EQ(file.header().tensors.size(), tensors.size());
  EXPECT_EQ(file.header().metadata.at("title"), "r\u00e9d");
  EXPECT_EQ(file.header().data_offset % 8, 0u);
  for (const auto& [name, want] : tensors) {
    const at::Tensor got = file.tensor(name);
    EXPECT_EQ(got.scalar_type(), want.scalar_type()) << name;
    EXPECT_EQ(got.sizes(), want.sizes()) << name;
    EXPECT_TRUE(at::equal(got.to(at::kDouble), want.to(at::kDouble))) << name;
  }
}

TEST(Safetensors, TensorsShareTheMappingInEveryStoredFloatType) {
  const TempDir folder;
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor numbers = at::arange(64, at::kFloat).to(dtype);
    write_safetensors(folder / "a.safetensors", {{"a", numbers}, {"b", numbers}});
    const SafetensorsFile file(folder / "a.safetensors");
    const auto* a = static_cast<const char*>(file.tensor("a").const_data_ptr());
    const auto* b = static_cast<const char*>(file.tensor("b").const_data_ptr());
    EXPECT_EQ(a, file.tensor("a").const_data_ptr());  // a copy would lie elsewhere
    EXPECT_EQ(b - a, static_cast<ptrdiff_t>(numbers.nbytes()));
  }
}

TEST(Safetensors, TensorsOutliveTheFileObject) {
  const TempDir folder;
  write_safetensors(folder / "a.safetensors", {{"a", at::arange(1000, at::kFloat)}});
  at::Tensor tensor;
  {
    const SafetensorsFile file(folder / "a.safetensors");
    tensor = file.tensor("a");
  }
  std::filesystem::remove(folder / "a.safetensors");
  EXPECT_TRUE(at::equal(tensor, at::arange(1000, at::kFloat)));
}

TEST(Safetensors, MisalignedDataIsCopiedIntoPlace) {
  const TempDir folder;
  // Five bytes first, so that the floats start at an odd offset.
  std::string data(5, '\1');
  const float values[] = {1.5f, -2.0f};
  data.append(reinterpret_cast<const char*>(values), sizeof(values));
  const auto path = folder.write(
      "odd.safetensors", weight_file(R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},)"
                                     R"("b":{"dtype":"F32","shape":[2],"data_offsets":[5,13]}} )",
                                     data));
  const SafetensorsFile file(path);
  const at::Tensor b = file.tensor("b");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b.const_data_ptr()) % alignof(float), 0u);
  EXPECT_EQ(b[0].item<float>(), 1.5f);
  EXPECT_EQ(b[1].item<float>(), -2.0f);
}

TEST(Safetensors, UnknownNameIsRefused) {
  const TempDir folder;
  write_safetensors(folder / "a.safetensors", {{"a", at::arange(2, at::kFloat)}});
  const SafetensorsFile file(folder / "a.safetensors");
  expect_error<WeightError>([&] { file.tensor("b"); }, HasSubstr("'b'"));
}

TEST(Safetensors, AbsentFileAndFolderAreRefused) {
  const TempDir folder;
  expect_error<IoError>([&] { SafetensorsFile file(folder / "none"); }, HasSubstr("No such file"));
  expect_error<IoError>([&] { SafetensorsFile file(folder.path()); }, HasSubstr("not a file"));
}

TEST(SafetensorsHeader, FilesOfOtherFormatsAreRefused) {
  const auto other = HasSubstr("not a safetensors file");
  const std::string eight = weight_file("", "");  // a length of 0 and nothing else
  expect_refusal("", other);
  expect_refusal("seven b", other);
  expect_refusal(eight, AllOf(other, HasSubstr("header of 0 bytes")));
  expect_refusal(eight + "{}", other);
  expect_refusal(std::string("\4\0\0\0\0\0\0\0abcdefgh", 16), other);
  expect_refusal(std::string("\0\0\0\0\0\0\0\x80{}", 10), other);  // 2^63
  expect_refusal(std::string("\3\0\0\0\0\0\0\0{}", 10), other);    // one byte past the end
  expect_refusal(weight_file("[1,2]", ""), other);
  expect_refusal(weight_file("{\"a\":", ""), other);
  expect_refusal(weight_file(std::string("{}\0{", 4), ""), other);
  expect_refusal(weight_file("{\"a\xff\":1}", ""), other);
  expect_refusal(weight_file(R"({"__metadata__":{"a":1}})", ""), other);
  expect_refusal(weight_file(R"({"__metadata__":[]})", ""), other);
}

TEST(SafetensorsHeader, AHeaderAboveTheLimitIsRefusedBeforeItIsRead) {
  std::string length(8, '\0');
  length[3] = '\x07';  // 7 * 2^24 bytes
  expect_error<WeightError>(
      [&] { parse_safetensors_header(length + "{", uint64_t{1} << 40, "big.safetensors"); },
      HasSubstr("100 MiB"));
}

TEST(SafetensorsHeader, DeepNestingIsRefused) {
  const std::string deep = "{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}";
  expect_refusal(weight_file(deep, ""), HasSubstr("nests deeper"));
}

TEST(SafetensorsHeader, DuplicateNamesAreRefused) {
  expect_refusal(weight_file(R"({"a.b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("a.b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                             "12"),
                 HasSubstr("'a.b' twice"));
}

TEST(SafetensorsHeader, DuplicateFieldsOfAnEntryAreRefused) {
  expect_refusal(
      weight_file(R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", "1"),
      HasSubstr("'dtype' twice"));
}

struct EntryFault {
  const char* name;
  const char* entry;  // of tensor "x.y"
  size_t data_bytes;
  const char* text;
};

std::ostream& operator<<(std::ostream& out, const EntryFault& fault) { return out << fault.name; }

class SafetensorsEntry : public ::testing::TestWithParam<EntryFault> {};

TEST_P(SafetensorsEntry, IsRefusedByName) {
  const EntryFault& fault = GetParam();
  const std::string header = std::string("{\"x.y\":") + fault.entry + "}";
  expect_refusal(weight_file(header, std::string(fault.data_bytes, 'x')),
                 AllOf(HasSubstr("x.y"), HasSubstr(fault.text)));
}

INSTANTIATE_TEST_SUITE_P(
    Faults, SafetensorsEntry,
    ::testing::Values(
        EntryFault{"bytes_disagree", R"({"dtype":"F64","shape":[4],"data_offsets":[0,16]})", 16,
                   "take 32 bytes"},
        EntryFault{"begin_after_end", R"({"dtype":"U8","shape":[1],"data_offsets":[2,1]})", 2,
                   "begin before"},
        EntryFault{"past_the_file", R"({"dtype":"U8","shape":[9],"data_offsets":[0,9]})", 8,
                   "truncated"},
        EntryFault{"offsets_near_2_64",
                   R"({"dtype":"U8","shape":[1],"data_offsets":[18446744073709551614,)"
                   R"(18446744073709551615]})",
                   8, "lie in the file"},
        EntryFault{"offset_above_2_64",
                   R"({"dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551616]})", 8,
                   "64-bit integer"},
        EntryFault{"negative_dimension", R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})", 1,
                   "got -1"},
        EntryFault{"fractional_dimension", R"({"dtype":"U8","shape":[1.0],"data_offsets":[0,1]})",
                   1, "got 1.0"},
        EntryFault{"dimension_of_64_bits",
                   R"({"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]})", 1,
                   "63 bits"},
        EntryFault{"product_overflows",
                   R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]})", 0,
                   "overflows"},
        EntryFault{"bytes_overflow",
                   R"({"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]})", 0,
                   "overflows"},
        EntryFault{"strides_overflow",
                   R"({"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]})", 0,
                   "overflows"},
        EntryFault{"entry_is_text", R"("hello")", 0, "must be an object"},
        EntryFault{"entry_is_null", "null", 0, "must be an object"},
        EntryFault{"no_dtype", R"({"shape":[1],"data_offsets":[0,1]})", 1, "no dtype"},
        EntryFault{"no_shape", R"({"dtype":"U8","data_offsets":[0,1]})", 1, "no shape"},
        EntryFault{"no_offsets", R"({"dtype":"U8","shape":[1]})", 1, "no data_offsets"},
        EntryFault{"dtype_is_number", R"({"dtype":8,"shape":[1],"data_offsets":[0,1]})", 1,
                   "dtype must be a string"},
        EntryFault{"dtype_unknown", R"({"dtype":"F5","shape":[2],"data_offsets":[0,1]})", 1,
                   "unknown dtype: got \"F5\""},
        EntryFault{"shape_is_number", R"({"dtype":"U8","shape":1,"data_offsets":[0,1]})", 1,
                   "shape must be a list"},
        EntryFault{"three_offsets", R"({"dtype":"U8","shape":[1],"data_offsets":[0,1,1]})", 1,
                   "list of two"},
        EntryFault{"offset_is_text", R"({"dtype":"U8","shape":[1],"data_offsets":["0",1]})", 1,
                   "64-bit integer"},
        EntryFault{"hole_before", R"({"dtype":"U8","shape":[1],"data_offsets":[1,2]})", 2,
                   "no holes"},
        EntryFault{"bytes_after", R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})", 3,
                   "2 bytes after it"}),
    [](const auto& test) { return std::string(test.param.name); });

// F4 has two numbers in a byte, and F8_E8M0 is only used for scales.
TEST(SafetensorsHeader, DtypesOfTheFormatThatAreNotReadHereAreNamedAsSuch) {
  for (const char* dtype : {"F4", "F8_E8M0", "F6_E2M3", "C64"}) {
    expect_refusal<UnsupportedError>(weight_file(std::string(R"({"a":{"dtype":")") + dtype +
                                                     R"(","shape":[1],"data_offsets":[0,1]}})",
                                                 "x"),
                                     AllOf(HasSubstr(std::string("tensor 'a': dtype ") + dtype),
                                           HasSubstr("F8_E4M3"), Not(HasSubstr("download"))));
  }
}

TEST(SafetensorsHeader, OverlappingTensorsAreRefusedByBothNames) {
  expect_refusal(weight_file(R"({"first":{"dtype":"U8","shape":[32],"data_offsets":[0,32]},)"
                             R"("second":{"dtype":"U8","shape":[32],"data_offsets":[16,48]}})",
                             std::string(48, 'x')),
                 AllOf(HasSubstr("'first'"), HasSubstr("'second'"), HasSubstr("overlap")));
}

TEST(SafetensorsHeader, ATruncatedFileIsRefusedNamingTheTensorThatIsCut) {
  const TempDir folder;
  const at::Tensor numbers = at::arange(8, at::kFloat);
  write_safetensors(folder / "a.safetensors", {{"whole", numbers}, {"zcut", numbers}});
  const std::string bytes = test::read_bytes(folder / "a.safetensors");
  expect_refusal(bytes.substr(0, bytes.size() - 1),
                 AllOf(HasSubstr("'zcut'"), HasSubstr("truncated"), Not(HasSubstr("'whole'"))));
}

TEST(SafetensorsHeader, EveryTruncationIsRefused) {
  const TempDir folder;
  write_safetensors(folder / "a.safetensors", {{"a", at::arange(4, at::kFloat)}});
  const std::string bytes = test::read_bytes(folder / "a.safetensors");
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(parse_safetensors_header(bytes.substr(0, size), size, "a"), WeightError) << size;
  }
  EXPECT_EQ(parse_safetensors_header(bytes, bytes.size(), "a").tensors.size(), 1u);
}

TEST(SafetensorsWriter, WhatTheFormatLacksIsRefusedAndLeavesNoFile) {
  const TempDir folder;
  const auto path = folder / "a.safetensors";
  const at::Tensor complex = at::arange(2, at::kFloat).to(at::kComplexFloat);
  const at::Tensor good = at::arange(2, at::kFloat);
  expect_error<UnsupportedError>(
      [&] {
        write_safetensors(path, {{"c", complex}});
      },
      AllOf(HasSubstr("'c'"), HasSubstr("Complex")));
  expect_error<UnsupportedError>(
      [&] {
        write_safetensors(path, {{"u", at::Tensor()}});
      },
      HasSubstr("'u'"));
  expect_error<UnsupportedError>(
      [&] {
        write_safetensors(path, {{"__metadata__", good}});
      },
      HasSubstr("__metadata__"));
  expect_error<UnsupportedError>(
      [&] {
        write_safetensors(path, {{"a", good}}, {{"k", "\xff"}});
      },
      HasSubstr("UTF-8"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SafetensorsWriter, AnAbsentFolderIsNamed) {
  const TempDir folder;
  expect_error<IoError>(
      [&] {
        write_safetensors(folder / "no/a.safetensors", {{"a", at::arange(2, at::kFloat)}});
      },
      HasSubstr("no/a.safetensors"));
}

TEST(SafetensorsWriter, MixedDtypesAreAlignedSoThatReadingCopiesNothing) {
  const TempDir folder;
  const std::filesystem::path path = folder / "mixed.safetensors";
  write_safetensors(path, {{"a", at::ones({3}, at::kByte)},
                           {"b", at::ones({3}, at::kHalf)},
                           {"c", at::ones({3}, at::kDouble)}});
  const SafetensorsFile file(path);
  for (const char* name : {"a", "b", "c"}) {
    EXPECT_EQ(file.tensor(name).const_data_ptr(), file.tensor(name).const_data_ptr()) << name;
    EXPECT_EQ(file.tensor(name).sum().item<double>(), 3.0) << name;
  }
}

}  // namespace
}  // namespace cachedit::io
