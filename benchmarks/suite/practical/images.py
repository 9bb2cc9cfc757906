"""Images on their way into a network."""

from torch.nn import functional as F


# kernel-lsp: image=u8[32, 512, 512, 3] in [0, 256), mean=f32[3], std=f32[3]
def normalize_image(image, mean, std):
    scaled = (image.to(mean.dtype) / 255 - mean) / std
    return scaled.permute(0, 3, 1, 2).contiguous()


# kernel-lsp: image=u8[32, 512, 512, 3] in [0, 256), mean=bf16[3], std=bf16[3]
def normalize_image_bf16(image, mean, std):
    return normalize_image(image, mean, std)


# kernel-lsp: image=u8[32, 512, 512, 3] in [0, 256), mean=f16[3], std=f16[3]
def normalize_image_f16(image, mean, std):
    return normalize_image(image, mean, std)


# kernel-lsp: image=f32[32, 3, 512, 512]
def resize_image(image):
    return F.interpolate(image, size=(224, 224), mode="bilinear", align_corners=False)


# kernel-lsp: image=bf16[32, 3, 512, 512]
def resize_image_bf16(image):
    return resize_image(image)


# kernel-lsp: image=f16[32, 3, 512, 512]
def resize_image_f16(image):
    return resize_image(image)
