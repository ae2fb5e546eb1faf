def hang_in(app):
    pass
