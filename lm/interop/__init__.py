"""Import from and export to Hugging Face, PEFT, GGUF (llama.cpp) and CTranslate2, a package or module each.

Start with `exporting` (`export_run`) and `hugging_face.importing` (`import_model`). Each converts tensor names and
layouts, configuration and tokenizer. Only the Python API and the command line may import this package.
"""
