// The few command-line options of the programs here: positional words, and names followed by a value.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace randomness {

class Options {
   public:
    Options(int argc, char** argv, const std::vector<std::string>& names, size_t positional) {
        for (int i = 1; i < argc; ++i) {
            const std::string word = argv[i];
            if (word.rfind("--", 0) != 0) {
                positional_.push_back(word);
            } else if (std::find(names.begin(), names.end(), word) == names.end() || i + 1 == argc) {
                throw std::invalid_argument("unknown option or missing value: " + word);
            } else {
                values_[word] = argv[++i];
            }
        }
        if (positional_.size() != positional)
            throw std::invalid_argument("expected " + std::to_string(positional) + " words beside the options, got " +
                                        std::to_string(positional_.size()));
    }
    const std::string& positional(size_t place) const { return positional_[place]; }
    std::string text(const std::string& name, const std::string& otherwise) const {
        const auto found = values_.find(name);
        return found == values_.end() ? otherwise : found->second;
    }
    uint64_t number(const std::string& name, uint64_t otherwise) const {
        const auto found = values_.find(name);
        if (found == values_.end()) return otherwise;
        const std::string& text = found->second;
        if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos)
            throw std::invalid_argument("expected a whole number after " + name + ", got " + text);
        return std::stoull(text);
    }

   private:
    std::vector<std::string> positional_;
    std::map<std::string, std::string> values_;
};

}  // namespace randomness
