// The arithmetic of a launch plan: 64-bit integers whose overflow is noticed, and `//` and `%` that floor, as in Python.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace plan {

// Why a plan has no value, or no launch, for the inputs at hand. The text outlives every call.
struct Unfit {
    const char* reason;
};

constexpr char TOO_LARGE[] = "a number of the launch plan does not fit 64 bits";
constexpr char DIVIDES_BY_ZERO[] = "the launch plan divides by zero";

// An integer of a plan. A result that 64 bits cannot hold throws Unfit.
struct Integer {
    int64_t value = 0;

    constexpr Integer() = default;
    constexpr Integer(int64_t given) : value(given) {}
};

constexpr Integer operator""_i(unsigned long long value) { return Integer(static_cast<int64_t>(value)); }

inline Integer operator+(Integer a, Integer b) {
    Integer sum;
    if (__builtin_add_overflow(a.value, b.value, &sum.value)) throw Unfit{TOO_LARGE};
    return sum;
}
inline Integer operator-(Integer a, Integer b) {
    Integer difference;
    if (__builtin_sub_overflow(a.value, b.value, &difference.value)) throw Unfit{TOO_LARGE};
    return difference;
}
inline Integer operator*(Integer a, Integer b) {
    Integer product;
    if (__builtin_mul_overflow(a.value, b.value, &product.value)) throw Unfit{TOO_LARGE};
    return product;
}
inline Integer operator-(Integer a) { return Integer(0) - a; }

constexpr bool operator<(Integer a, Integer b) { return a.value < b.value; }
constexpr bool operator<=(Integer a, Integer b) { return a.value <= b.value; }
constexpr bool operator>(Integer a, Integer b) { return a.value > b.value; }
constexpr bool operator>=(Integer a, Integer b) { return a.value >= b.value; }
constexpr bool operator==(Integer a, Integer b) { return a.value == b.value; }
constexpr bool operator!=(Integer a, Integer b) { return a.value != b.value; }

// The remainder has the sign of the divisor.
inline Integer floor_mod(Integer a, Integer b) {
    if (b.value == 0) throw Unfit{DIVIDES_BY_ZERO};
    if (b.value == -1) return 0;  // the processor traps on the smallest integer
    const int64_t rest = a.value % b.value;
    return rest != 0 && (rest < 0) != (b.value < 0) ? rest + b.value : rest;
}
inline Integer floor_div(Integer a, Integer b) {
    if (b.value == 0) throw Unfit{DIVIDES_BY_ZERO};
    if (b.value == -1) return -a;
    const int64_t quotient = a.value / b.value;
    return a.value % b.value != 0 && (a.value < 0) != (b.value < 0) ? quotient - 1 : quotient;
}
inline Integer ceil_div(Integer a, Integer b) { return -floor_div(-a, b); }
inline Integer smaller(Integer a, Integer b) { return b < a ? b : a; }
inline Integer larger(Integer a, Integer b) { return b > a ? b : a; }

// Doubles, as Python's floats.
inline double real(Integer a) { return static_cast<double>(a.value); }
inline double divide(double a, double b) {
    if (b == 0.0) throw Unfit{DIVIDES_BY_ZERO};
    return a / b;
}
inline double floor_mod(double a, double b) {
    if (b == 0.0) throw Unfit{DIVIDES_BY_ZERO};
    const double rest = std::fmod(a, b);
    if (rest == 0.0) return std::copysign(0.0, b);
    return (rest < 0.0) != (b < 0.0) ? rest + b : rest;
}
inline double floor_div(double a, double b) {
    const double exact = divide(a - floor_mod(a, b), b);
    if (exact == 0.0) return std::copysign(0.0, a / b);
    const double below = std::floor(exact);
    return exact - below > 0.5 ? below + 1.0 : below;
}
inline double ceil_div(double a, double b) { return -floor_div(-a, b); }
inline double smaller(double a, double b) { return b < a ? b : a; }
inline double larger(double a, double b) { return b > a ? b : a; }

// A value as a kernel's parameter holds it.
template <typename T>
T as(Integer value) {
    if constexpr (std::is_same_v<T, bool>) {
        return value.value != 0;
    } else if constexpr (std::is_floating_point_v<T>) {
        return static_cast<T>(value.value);
    } else {
        const T held = static_cast<T>(value.value);
        const bool is_same = static_cast<int64_t>(held) == value.value && (held < T(0)) == (value.value < 0);
        if (!is_same) throw Unfit{"a number does not fit the type of a kernel's parameter"};
        return held;
    }
}
template <typename T>
T as(double value) {
    if constexpr (std::is_same_v<T, bool>) {
        return value != 0.0;
    } else if constexpr (std::is_floating_point_v<T>) {
        const bool fits = !(std::isfinite(value) && std::abs(value) > double(std::numeric_limits<T>::max()));
        if (!fits) throw Unfit{"a number does not fit the type of a kernel's parameter"};
        return static_cast<T>(value);
    } else {
        const bool is_integer = std::floor(value) == value && std::abs(value) < 9223372036854775808.0;
        if (!is_integer) throw Unfit{"a number that is no integer is given to an integer parameter of a kernel"};
        return as<T>(Integer(static_cast<int64_t>(value)));
    }
}
inline Integer integer(bool value) { return value ? 1 : 0; }

// Whether a condition is true. One that has no value is not.
template <typename Condition>
bool holds(Condition condition) {
    try {
        return condition();
    } catch (const Unfit&) {
        return false;
    }
}

}  // namespace plan
