"""Where the tokenizer meets other tools' data: Ray and Hugging Face datasets.  Each module needs its tool only."""
