"""Templates of prompts: files with parameters, which `callboard ask -t NAME` fills."""
