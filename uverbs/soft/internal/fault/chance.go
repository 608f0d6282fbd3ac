package fault

import (
	"math/bits"
	"strconv"
	"strings"
)

// A Chance is a probability in parts per million. Write 1% as 1*Percent. A whole number keeps the
// text form exact.
type Chance uint32

// Chances.
const (
	Percent Chance = 10_000    // one in a hundred
	Always  Chance = 1_000_000 // every time, the largest Chance
)

// decimals is the number of digits behind the point of a Chance in percent.
const decimals = 4

// String returns the chance in percent, as "1%" or "0.0001%".
func (c Chance) String() string {
	whole, rest := c/Percent, c%Percent
	s := strconv.Itoa(int(whole))
	if rest != 0 {
		digits := strconv.Itoa(int(Percent + rest))[1:] // with leading zeros
		s += "." + strings.TrimRight(digits, "0")
	}
	return s + "%"
}

// parseChance is the inverse of String: a decimal number with at most four digits behind the point
// and a percent sign.
func parseChance(s string) (Chance, bool) {
	number, ok := strings.CutSuffix(s, "%")
	if !ok {
		return 0, false
	}
	whole, rest, _ := strings.Cut(number, ".")
	if len(rest) > decimals || !isNumber(whole) || (rest != "" && !isNumber(rest)) {
		return 0, false
	}
	if strings.HasSuffix(number, ".") {
		return 0, false
	}
	n, err := strconv.ParseUint(whole+rest+strings.Repeat("0", decimals-len(rest)), 10, 32)
	if err != nil || Chance(n) > Always {
		return 0, false
	}
	return Chance(n), true
}

// isNumber reports whether a text consists of one or more decimal digits.
func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// hits reports whether an event of this chance happens for a draw, a random number of 64 bits.
func (c Chance) hits(draw uint64) bool {
	part, _ := bits.Mul64(draw, uint64(Always)) // 0 to 999,999, uniform
	return part < uint64(c)
}
