# EKS with two small GPUs, made when replicas want them and gone when none does; the API is open to your
# address alone.

terraform {
  required_version = ">= 1.9"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 6.25"
    }
    helm = {
      source  = "hashicorp/helm"
      version = "~> 3.1"
    }
    kubernetes = {
      source  = "hashicorp/kubernetes"
      version = "~> 2.38"
    }
  }
}

variable "region" {
  type        = string
  description = "Region of AWS."
  default     = "eu-central-1"
}

variable "my_cidr" {
  type        = string
  description = "Your own address, such as 203.0.113.7/32: the Kubernetes API is open to it."
}

variable "budget_email" {
  type        = string
  description = "Who is told when the month becomes dear."
}

provider "aws" {
  region = var.region
}

provider "kubernetes" {
  host                   = module.cluster.cluster_endpoint
  cluster_ca_certificate = base64decode(module.cluster.cluster_ca)

  exec {
    api_version = "client.authentication.k8s.io/v1beta1"
    command     = "aws"
    args        = ["eks", "get-token", "--region", var.region, "--cluster-name", module.cluster.cluster_name]
  }
}

provider "helm" {
  kubernetes = {
    host                   = module.cluster.cluster_endpoint
    cluster_ca_certificate = base64decode(module.cluster.cluster_ca)

    exec = {
      api_version = "client.authentication.k8s.io/v1beta1"
      command     = "aws"
      args        = ["eks", "get-token", "--region", var.region, "--cluster-name", module.cluster.cluster_name]
    }
  }
}

module "cluster" {
  source = "../../../modules/aws"

  name                = "chairlift-small"
  api_cidrs           = [var.my_cidr]
  flow_log_days       = 0
  log_days            = 30
  system_pool         = { min = 1, max = 3 }
  gpu_pools           = { l4 = { instance_types = ["g6.4xlarge"], max = 2 } }
  budget              = { monthly_usd = 1500, emails = [var.budget_email] }
  deletion_protection = false
}

module "service" {
  source = "../../../modules/service"

  node_ports = module.cluster.node_ports

  eks = {
    cluster_name        = module.cluster.cluster_name
    region              = var.region
    autoscaler_role_arn = module.cluster.autoscaler_role_arn
  }
}

output "kubeconfig" {
  description = "The command that lets kubectl in."
  value       = "aws eks update-kubeconfig --region ${var.region} --name ${module.cluster.cluster_name}"
}

output "weights_bucket" {
  description = "Where the weights belong."
  value       = module.cluster.weights_bucket
}
