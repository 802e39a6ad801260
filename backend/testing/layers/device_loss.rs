//! A Vulkan layer that makes the GPU fail. Vulkan's loader puts it between the program and the
//! driver. While the file that `DEVICE_LOSS_FILE` names exists, every call of `vkQueueSubmit`
//! returns `VK_ERROR_DEVICE_LOST`, as after a reset of the GPU. The layer implements the interface
//! that LoaderLayerInterface.md of Khronos' Vulkan-Loader describes.
use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::SeqCst};

type Function = *mut c_void;
type GetAddress = unsafe extern "C" fn(*mut c_void, *const c_char) -> Function;
type Create = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void, *mut c_void) -> i32;
type CreateInstance = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void) -> i32;
type Submit = unsafe extern "C" fn(*mut c_void, u32, *mut c_void, *mut c_void) -> i32;

const DEVICE_LOST: i32 = -4;
const LOADER_INSTANCE_CREATE_INFO: i32 = 47;
const LOADER_DEVICE_CREATE_INFO: i32 = 48;
const LINK_INFO: i32 = 0;

/// Functions of the next layer or the driver.
static NEXT_GET_INSTANCE_PROC_ADDR: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static NEXT_GET_DEVICE_PROC_ADDR: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static NEXT_QUEUE_SUBMIT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// `VkNegotiateLayerInterface`.
#[repr(C)]
pub struct Interface {
    kind: i32,
    next: *mut c_void,
    version: u32,
    instance_address: GetAddress,
    device_address: GetAddress,
    physical_device_address: Function,
}

/// `VkLayerInstanceCreateInfo` and `VkLayerDeviceCreateInfo`.
#[repr(C)]
struct CreateInfo {
    kind: i32,
    next: *mut CreateInfo,
    function: i32,
    link: *mut Link,
}

/// `VkLayerInstanceLink` and `VkLayerDeviceLink`.
#[repr(C)]
struct Link {
    next: *mut Link,
    instance_address: Function,
    device_address: Function,
}

/// Returns the link for this layer, and advances the chain to the next layer.
unsafe fn take_link(mut info: *mut CreateInfo, kind: i32) -> *mut Link {
    unsafe {
        while (*info).kind != kind || (*info).function != LINK_INFO {
            info = (*info).next;
        }
        let link = (*info).link;
        (*info).link = (*link).next;
        link
    }
}

unsafe extern "C" fn create_instance(info: *mut c_void, allocator: *mut c_void, instance: *mut c_void) -> i32 {
    unsafe {
        let link = take_link((*info.cast::<CreateInfo>()).next, LOADER_INSTANCE_CREATE_INFO);
        NEXT_GET_INSTANCE_PROC_ADDR.store((*link).instance_address, SeqCst);
        let address: GetAddress = transmute((*link).instance_address);
        let create: CreateInstance = transmute(address(null_mut(), c"vkCreateInstance".as_ptr()));
        create(info, allocator, instance)
    }
}

unsafe extern "C" fn create_device(
    gpu: *mut c_void,
    info: *mut c_void,
    allocator: *mut c_void,
    device: *mut c_void,
) -> i32 {
    unsafe {
        let link = take_link((*info.cast::<CreateInfo>()).next, LOADER_DEVICE_CREATE_INFO);
        NEXT_GET_DEVICE_PROC_ADDR.store((*link).device_address, SeqCst);
        let address: GetAddress = transmute((*link).instance_address);
        let create: Create = transmute(address(null_mut(), c"vkCreateDevice".as_ptr()));
        create(gpu, info, allocator, device)
    }
}

unsafe extern "C" fn queue_submit(queue: *mut c_void, count: u32, submits: *mut c_void, fence: *mut c_void) -> i32 {
    if std::env::var_os("DEVICE_LOSS_FILE").is_some_and(|file| std::path::Path::new(&file).exists()) {
        return DEVICE_LOST;
    }
    unsafe { transmute::<Function, Submit>(NEXT_QUEUE_SUBMIT.load(SeqCst))(queue, count, submits, fence) }
}

unsafe extern "C" fn get_device_proc_addr(device: *mut c_void, name: *const c_char) -> Function {
    unsafe {
        let next: GetAddress = transmute(NEXT_GET_DEVICE_PROC_ADDR.load(SeqCst));
        match CStr::from_ptr(name).to_bytes() {
            b"vkGetDeviceProcAddr" => get_device_proc_addr as Function,
            b"vkQueueSubmit" => {
                NEXT_QUEUE_SUBMIT.store(next(device, name), SeqCst);
                queue_submit as Function
            }
            _ => next(device, name),
        }
    }
}

unsafe extern "C" fn get_instance_proc_addr(instance: *mut c_void, name: *const c_char) -> Function {
    unsafe {
        match CStr::from_ptr(name).to_bytes() {
            b"vkGetInstanceProcAddr" => get_instance_proc_addr as Function,
            b"vkGetDeviceProcAddr" => get_device_proc_addr as Function,
            b"vkCreateInstance" => create_instance as Function,
            b"vkCreateDevice" => create_device as Function,
            _ => transmute::<Function, GetAddress>(NEXT_GET_INSTANCE_PROC_ADDR.load(SeqCst))(instance, name),
        }
    }
}

/// The entry point that the loader calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vkNegotiateLoaderLayerInterfaceVersion(interface: *mut Interface) -> i32 {
    unsafe {
        (*interface).version = 2;
        (*interface).instance_address = get_instance_proc_addr;
        (*interface).device_address = get_device_proc_addr;
        (*interface).physical_device_address = null_mut();
    }
    0
}
