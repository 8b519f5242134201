#include "text/nfc.h"

#include <unicode/bytestream.h>
#include <unicode/edits.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>

#include "base/fail.h"
#include "text/unicode.h"

namespace cachedit::text {
namespace {

void check_icu(UErrorCode status) {
  if (U_FAILURE(status)) {
    fail<UnsupportedError>("text", "ICU cannot normalise text: got ", u_errorName(status),
                           "; install ICU's data files");
  }
}

const icu::Normalizer2& nfc_of_icu() {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* nfc = icu::Normalizer2::getNFCInstance(status);
  check_icu(status);
  return *nfc;
}

// The reference normalises by the tables of Unicode 9: combining marks that are newer are not
// reordered.
icu::UnicodeSet known_characters() {
  UErrorCode status = U_ZERO_ERROR;
  icu::UnicodeSet known(icu::UnicodeString("[:Age=9.0:]"), status);
  check_icu(status);
  known.freeze();
  return known;
}

}  // namespace

struct Nfc::State {
  icu::UnicodeSet known = known_characters();
  icu::FilteredNormalizer2 normalizer{nfc_of_icu(), known};
};

Nfc::Nfc() : state_(std::make_unique<State>()) {}
Nfc::~Nfc() = default;

MappedText Nfc::operator()(std::string_view text) const {
  if (is_ascii(text)) return MappedText::identity(text);
  MappedText result;
  icu::StringByteSink<std::string> sink(&result.text);
  icu::Edits edits;
  UErrorCode status = U_ZERO_ERROR;
  state_->normalizer.normalizeUTF8(
      0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink, &edits, status);
  check_icu(status);
  const MappedText unchanged = MappedText::identity(text);
  result.origin.reserve(result.text.size());
  icu::Edits::Iterator edit = edits.getFineIterator();
  while (edit.next(status)) {
    for (int32_t i = 0; i < edit.newLength(); ++i) {
      const int32_t source = edit.sourceIndex() + (edit.hasChange() ? 0 : i);
      result.origin.push_back(unchanged.origin[static_cast<size_t>(source)]);
    }
  }
  check_icu(status);
  return result;
}

}  // namespace cachedit::text
