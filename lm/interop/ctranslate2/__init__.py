"""CTranslate2: export of decoders and translation models."""
