"""stub"""
class ObjectsOverBuffers:
    pass
